"""Making a collection smaller: `compact`; and making what was deleted unreadable: `purge`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsearch.engine.collection import Collection
from dsearch.engine.indexing.ingest import OnProgress
from dsearch.engine.indexing.retention import clear, retire
from dsearch.engine.models.documents import FOLDER
from dsearch.errors import Cancelled
from dsearch.store import Store
from dsearch.types import Progress

_LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Compacted:
    """What became of a collection's files.

    Attributes:
        bytes_before: of all its files.
        bytes_after: of all its files.
        generation: the live one.
        rows: deleted rows that are gone for good.
        kept: deleted rows that a generation in `held` still has; what was deleted after the beginning is
            not counted.
        held: generations that another reader holds, so that they could not go.
        models: versions whose own index of the documents, as old as they are, has some that are gone.
        overwritten: whether SQLite's write-ahead log was emptied, too; a reader that is at work prevents it.
    """

    bytes_before: int
    bytes_after: int
    generation: int
    rows: int
    kept: int
    held: tuple[int, ...]
    models: tuple[str, ...]
    overwritten: bool

    @property
    def complete(self) -> bool:
        """Whether nothing that was deleted before is left in any file of the collection."""
        return not self.kept and not self.held and not self.models and self.overwritten

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with `complete`."""
        return {**asdict(self), "complete": self.complete}


def compact(
    collection: Collection,
    on_progress: OnProgress | None = None,
    *,
    rebuild: bool = False,
    spawned: bool | None = None,
    patience_s: float = 0.0,
    cancelled: Callable[[], bool] | None = None,
) -> Compacted:
    """Build a generation of what is there now, let all others go, and write the database without free space.

    What had been deleted or replaced before is then in none of the files. A reader that holds an older
    generation, or is in the middle of reading, prevents that, and so does a model of scope `full`, which has
    the documents of its training: `Compacted.complete` tells. Feedback and backups are not looked at.

    Searches and writes go on; while the database is written anew, writes wait.

    Args:
        collection: open for writing.
        on_progress: told of the build.
        rebuild: whether to build even if the live generation lacks nothing and has nothing too much.
        spawned: as for `Collection.refresh`.
        patience_s: how long readers that are at work are waited for, as those of a server's searches.
        cancelled: asked now and then.

    Raises:
        InsufficientStorage: it takes twice the space for a while.
        Cancelled: what was deleted may be there as before.
    """
    store = collection.store
    asked, before = store.sequence, folder_bytes(store.path)
    if rebuild or collection.stale or store.count().tombstones:
        collection.refresh(on_progress, spawned=spawned, cancelled=cancelled)
    until = time.monotonic() + patience_s
    with collection.rebuilder.alone():  # a build that runs would be of rows that go, or be cleared away
        while True:
            collection.forget_states()
            retire(store, keep=1)
            held = tuple(store.retirable_generations(1))
            if not held or time.monotonic() >= until:
                break
            _wait(cancelled)
        clear(store)
        if on_progress is not None:
            on_progress(Progress("purge", 0, 1, 0.0))
        started = time.monotonic()
        report = store.purge()
        rows = report.rows
        while not report.overwritten and time.monotonic() < until:
            _wait(cancelled)
            report = store.purge()
            rows += report.rows
        if on_progress is not None:
            on_progress(Progress("purge", 1, 1, time.monotonic() - started))
    later = min(one.snapshot for one in store.generations()) >= asked
    return Compacted(
        before,
        folder_bytes(store.path),
        collection.snapshot.generation.number,
        rows,
        0 if later else report.kept,
        held,
        tuple(models_holding_deleted(store)),
        report.overwritten,
    )


def models_holding_deleted(store: Store) -> list[str]:
    """Versions with an index of their own (model_documents.py) in which there are rows that are not live."""
    there = store.rows()
    found: list[str] = []
    for model in store.models():
        of_model = store.path / "models" / model.version / FOLDER
        for path in sorted(of_model.glob("*/rows.npy")):
            if len(np.setdiff1d(np.load(path, allow_pickle=False), there)):
                found.append(model.version)
                break
    return found


def folder_bytes(folder: Path) -> int:
    """The size of all files below a folder."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # went meanwhile
    return total


def _wait(cancelled: Callable[[], bool] | None) -> None:
    if cancelled is not None and cancelled():
        raise Cancelled("compacting was cancelled; what was deleted may be in files as before")
    time.sleep(_LOOK_EVERY_S)

"""`compact` reduces the size of a collection; `purge` makes deleted documents unreadable."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsearch.engine.collection import Collection
from dsearch.engine.indexing.ingest import OnProgress
from dsearch.engine.indexing.leases import clear, retire
from dsearch.engine.indexing.releases import holding_note, releases_holding_deleted, retire_releases
from dsearch.engine.models.documents import FOLDER
from dsearch.engine.rebuild import disk_errors
from dsearch.errors import Cancelled
from dsearch.store import Store
from dsearch.types import Progress

_LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Compaction:
    """Result of compacting a collection.

    Attributes:
        bytes_before: size of all files before.
        bytes_after: size of all files after.
        generation: number of the live generation.
        rows: number of deleted rows that were removed.
        kept: number of deleted rows that a generation in `held` still contains; rows deleted after the start
            are not counted.
        held: generations that another reader holds, so that they could not be deleted.
        models: versions whose own, older document index still contains deleted rows.
        overwritten: True if SQLite's write-ahead log was emptied too; an active reader prevents it.
        releases: releases for shards, and URIs of their copies, that contain deleted rows.
        note: what to do about `releases`; None where there is nothing to do.
    """

    bytes_before: int
    bytes_after: int
    generation: int
    rows: int
    kept: int
    held: tuple[int, ...]
    models: tuple[str, ...]
    overwritten: bool
    releases: tuple[str, ...] = ()
    note: str | None = None

    @property
    def complete(self) -> bool:
        """True if no file of the collection, and no release, has rows that were deleted before the start."""
        nothing_left = not self.kept and not self.held and not self.models and not self.releases
        return nothing_left and self.overwritten

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
) -> Compaction:
    """Build a generation of the present documents, retire all others, and remove the database's free space.

    What had been deleted or replaced before is then in none of the files. A reader that holds an older
    generation, or is in the middle of reading, prevents that, and so does a model of scope `full`, which has
    the documents of its training, or a release that shards answer with: `Compaction.complete` tells.
    Feedback and backups are not looked at.

    Searches and writes go on; while the database is written anew, writes wait.

    Args:
        collection: open for writing.
        on_progress: receives the progress of the build.
        rebuild: True to build even if the live generation is up to date.
        spawned: as for `Collection.refresh`.
        patience_s: time to wait for active readers, such as a server's searches.
        cancelled: polled; True stops the work.

    Raises:
        InsufficientStorage: it needs twice the space temporarily.
        Unavailable: the disk cannot be read or written; all documents stand.
        Cancelled: deleted data may remain in files.
    """
    with disk_errors(collection.store, "compact"):
        return _compact(
            collection,
            on_progress,
            rebuild=rebuild,
            spawned=spawned,
            patience_s=patience_s,
            cancelled=cancelled,
        )


def _compact(
    collection: Collection,
    on_progress: OnProgress | None,
    *,
    rebuild: bool,
    spawned: bool | None,
    patience_s: float,
    cancelled: Callable[[], bool] | None,
) -> Compaction:
    store = collection.store
    requested, before = store.sequence, folder_bytes(store.path)
    if rebuild or collection.stale or store.count().tombstones:
        collection.refresh(on_progress, spawned=spawned, cancelled=cancelled)
    until = time.monotonic() + patience_s
    with collection.rebuilder.alone():  # a concurrent build would contain removed rows
        while True:
            collection.forget_states()
            retire(store, keep=1)
            retire_releases(store, keep=1)
            unreleased = tuple(store.retirable_generations(1))
            if not unreleased or time.monotonic() >= until:
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
    holding = tuple(releases_holding_deleted(store))
    later = min(generation.snapshot for generation in store.generations()) >= requested
    return Compaction(
        before,
        folder_bytes(store.path),
        collection.snapshot.generation.number,
        rows,
        0 if later else report.kept,
        unreleased,
        tuple(models_holding_deleted(store)),
        report.overwritten,
        holding,
        holding_note(store, holding),
    )


def models_holding_deleted(store: Store) -> list[str]:
    """Return versions whose own index (models/documents.py) contains rows that are not live."""
    present = store.rows()
    versions: list[str] = []
    for model in store.models():
        of_model = store.path / "models" / model.version / FOLDER
        for path in sorted(of_model.glob("*/rows.npy")):
            if len(np.setdiff1d(np.load(path, allow_pickle=False), present)):
                versions.append(model.version)
                break
    return versions


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below a folder."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # deleted meanwhile
    return total


def _wait(cancelled: Callable[[], bool] | None) -> None:
    if cancelled is not None and cancelled():
        raise Cancelled("compacting was cancelled; what was deleted may be in files as before")
    time.sleep(_LOOK_EVERY_S)

"""Making a collection smaller: `compact`; and making what was deleted unreadable: `purge`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dsearch.engine.indexing import OnProgress
from dsearch.engine.model_documents import FOLDER
from dsearch.engine.retirement import clear, retire
from dsearch.store import Store

if TYPE_CHECKING:
    from dsearch.engine.collection import Collection


@dataclass(frozen=True, slots=True)
class Compacted:
    """What became of a collection's files.

    Attributes:
        bytes_before: of all its files.
        bytes_after: of all its files.
        generation: the live one.
        rows: deleted rows that are gone for good.
        kept: deleted rows that a generation in `held` still has.
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
        """Whether nothing that was deleted is left in any file of the collection."""
        return not self.kept and not self.held and not self.models and self.overwritten


def compact(
    collection: Collection, on_progress: OnProgress | None = None, *, rebuild: bool = False
) -> Compacted:
    """Build a generation of what is there now, let all others go, and write the database without free space.

    What was deleted or replaced is then in none of the files. A reader in another process that holds an older
    generation, or is in the middle of reading, prevents that, and so does a model of scope `full`, which has
    the documents of its training: `Compacted.complete` tells. Feedback and backups are not looked at.

    Args:
        collection: open for writing.
        on_progress: told of the build.
        rebuild: whether to build even if the live generation lacks nothing and has nothing too much.

    Raises:
        InsufficientStorage: it takes twice the space for a while.
    """
    store = collection.store
    before = folder_bytes(store.path)
    if rebuild or collection.stale or store.count().tombstones:
        collection.refresh(on_progress)
    collection.forget_states()
    with collection.rebuilder.alone():  # a build that runs would be of rows that go, or be cleared away
        retire(store, keep=1)
        clear(store)
        report = store.purge()
        held = tuple(store.retirable_generations(1))
    return Compacted(
        before,
        folder_bytes(store.path),
        collection.snapshot.generation.number,
        report.rows,
        report.kept,
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

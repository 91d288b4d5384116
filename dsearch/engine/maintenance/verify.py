"""`verify` reads all data of a collection again and checks store, generations and models against each other.

`recover` makes a collection that lost acknowledged writes usable with the documents that remain. It runs only
on request, because restoring a backup may be the better choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsearch.engine.indexing.leases import open_registered
from dsearch.errors import CorruptData, DsearchError, Gone, NotFound, UnsupportedFormat, amount
from dsearch.index import Generation
from dsearch.index.durable import file_digest
from dsearch.store import FeedbackStore, GenerationRecord, ModelRecord, Store

_AT_A_TIME = 8192


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of verifying a collection.

    Attributes:
        name: name of the collection, or of its folder if the name cannot be read.
        documents: number of live documents.
        embeddings: number of embeddings of live and deleted documents.
        generations: numbers of the registered generations.
        models: registered model versions.
        problems: differences from the data as written; empty if there are none.
    """

    name: str
    documents: int
    embeddings: int
    generations: tuple[int, ...]
    models: tuple[str, ...]
    problems: tuple[DsearchError, ...]

    @property
    def damage(self) -> tuple[str, ...]:
        """Texts of the problems."""
        return tuple(map(str, self.problems))

    @property
    def ok(self) -> bool:
        """True if every digest agrees, and index and store agree with each other."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.name,
            "documents": self.documents,
            "embeddings": self.embeddings,
            "generations": self.generations,
            "models": self.models,
            "damage": self.damage,
            "ok": self.ok,
        }


def verify_collection(path: Path) -> Verification:
    """Verify the collection in folder `path`; damage is reported, not raised. Others may write meanwhile.

    Raises:
        CollectionNotFound: there is none.
    """
    problems: list[DsearchError] = []
    try:
        store = Store.open(path, readonly=True)
    except (CorruptData, UnsupportedFormat) as error:
        problems.append(error)
        try:
            store = Store.open(path, readonly=True, accept_loss=True)
        except DsearchError:
            return Verification(path.name, 0, 0, (), (), tuple(problems))
    with store:
        report = store.verify()
        problems += map(CorruptData, report.damage)
        generations: list[GenerationRecord] = []
        models: list[ModelRecord] = []
        try:
            generations, models = store.generations(), store.models()
        except (DsearchError, ValueError) as error:
            problems.append(CorruptData(f"the register of generations and models cannot be read ({error})"))
        for record in generations:
            problems += _generation(store, record)
        for model in models:
            problems += map(CorruptData, damaged_model_files(path, model))
        if problem := FeedbackStore(path).problem():
            problems.append(problem)
        return Verification(
            store.name,
            report.documents,
            report.embeddings,
            tuple(record.number for record in generations),
            tuple(record.version for record in models),
            tuple(problems),
        )


def damaged_model_files(path: Path, model: ModelRecord) -> Iterator[str]:
    """Yield the problems of the files of a registered model of the collection in folder `path`."""
    for name, written in model.record.get("files", {}).items():
        file = path / "models" / model.version / name
        try:
            size, digest = file_digest(file)
        except OSError as error:
            yield f"model {model.version}: {file} cannot be read ({error})"
            continue
        if digest != written["sha256"]:
            yield f"model {model.version}: {file} has SHA-256 {digest}, registered was {written['sha256']}"
        elif size != written["bytes"]:
            yield f"model {model.version}: {file} has {size} bytes, registered were {written['bytes']}"


def _generation(store: Store, record: GenerationRecord) -> Iterator[DsearchError]:
    try:
        generation = open_registered(store, record)
    except (CorruptData, UnsupportedFormat) as error:
        yield error
        return
    if generation is None:
        return  # retired meanwhile
    expected = _rows_as_of(store, record.snapshot)
    if expected is not None and not np.array_equal(expected, generation.rows):
        missing, extra = np.setdiff1d(expected, generation.rows), np.setdiff1d(generation.rows, expected)
        yield CorruptData(
            f"generation {record.number}: {amount(len(missing), 'row')} of the store as of operation "
            f"{record.snapshot} missing in it, {amount(len(extra), 'row')} in it that the store did not have"
        )
    yield from map(CorruptData, _embeddings(store, generation))


def _embeddings(store: Store, generation: Generation) -> Iterator[str]:
    for start in range(0, len(generation), _AT_A_TIME):
        rows = generation.rows[start : start + _AT_A_TIME]
        try:
            stored = store.embeddings(rows)
        except (CorruptData, NotFound) as error:
            yield f"generation {generation.number}: {error}"
            continue
        yield from _passages(store, generation, start, rows)
        differ = np.any(stored != generation.embeddings[start : start + len(rows)], axis=1)
        if differ.any():
            first = int(rows[np.argmax(differ)])
            yield (
                f"generation {generation.number}: not those of the store: "
                f"{amount(int(differ.sum()), 'embedding')}, the first is that of row {first}; build it again"
            )


def _passages(store: Store, generation: Generation, start: int, rows: np.ndarray) -> Iterator[str]:
    table = generation.passages
    first, last = np.searchsorted(table.owners, [start, start + len(rows)])
    stored = store.passages(rows)
    spans = [parts.spans[1:] for parts in stored.values()]
    vectors = [parts.embeddings for parts in stored.values()]
    owners = np.repeat(list(stored), [*map(len, spans)]) if stored else np.zeros(0, np.int64)
    same = (
        np.array_equal(rows[table.owners[first:last] - start], owners)
        and np.array_equal(table.spans[first:last], np.concatenate(spans) if spans else table.spans[:0])
        and np.array_equal(
            table.embeddings[first:last], np.concatenate(vectors) if vectors else table.embeddings[:0]
        )
    )
    if not same:
        yield (
            f"generation {generation.number}: passages of rows {rows[0]} to {rows[-1]} are not those of the "
            "store; build it again"
        )


def _rows_as_of(store: Store, sequence: int) -> np.ndarray | None:
    """Return the searchable rows after an operation; None if frequent writes prevent it."""
    for _ in range(10):
        try:
            changes, now = store.changes_since(sequence), store.snapshot()
        except Gone:
            return None
        if changes.sequence == now.sequence:
            return np.union1d(np.setdiff1d(now.rows, changes.added), changes.removed)
    return None


@dataclass(frozen=True, slots=True)
class Recovery:
    """Result of a recovery.

    Attributes:
        name: name of the collection.
        loss: description of the lost data; None if nothing was lost and nothing was changed.
        documents: number of documents that remain.
    """

    name: str
    loss: str | None
    documents: int


def accept_loss(path: Path) -> str | None:
    """Make the collection in folder `path` continue with its remaining data; describe the lost data.

    Numbers of lost operations are not used again. Returns None if nothing is missing.

    Raises:
        CollectionNotFound, HomeLocked, UnsupportedFormat.
        CorruptData: the database itself cannot be read.
    """
    try:
        with Store.open(path):
            return None
    except CorruptData as error:
        loss = error.message
    with Store.open(path, accept_loss=True):
        return loss

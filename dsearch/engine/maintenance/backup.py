"""Backup, restoration and export of a collection.

A backup copies a collection while it is being written to. The store's copy is the state after one operation
(store/backup.py). Beside it go the files of the models that this copy registers, the live generation, and the
feedback. Files of models and generations never change, and a lease protects the generation during the copy.

Models cannot be computed again, so only damage to them stops a restoration; a missing or damaged generation
is rebuilt.

Documents are exported as JSON lines or as a BEIR folder; `dsearch index` reads both.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from dsearch.corpus import write_beir
from dsearch.corpus.formats.beir import record_of
from dsearch.engine.indexing.ingest import generation_folder
from dsearch.engine.indexing.leases import lease_registered
from dsearch.engine.maintenance.verify import damaged_model_files
from dsearch.errors import CorruptData, DsearchError
from dsearch.index import Manifest
from dsearch.store import GenerationRecord, ModelRecord, Store
from dsearch.store.feedback.store import copy_feedback
from dsearch.types import Document

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that stands.

    Attributes:
        sequence: the operation that it is as of.
        documents: live ones.
        size_bytes: of all its files.
        generation: the number of the one in it; None where its files were not whole, so that a restoration
            will build one.
        models: the versions in it.
    """

    sequence: int
    documents: int
    size_bytes: int
    generation: int | None
    models: tuple[str, ...]


def back_up(store: Store, path: Path) -> Backup:
    """Copy a collection into the new folder `path`, whole or not at all; others may write meanwhile.

    Raises:
        Conflict: something lies at `path`.
        CorruptData: the files of a model are not what was registered.
        InsufficientStorage: there is no room.
    """
    copied: list[int] = []
    versions: list[str] = []

    def add_files(folder: Path) -> None:
        live, models = registered_in(folder)
        _refuse_damaged(store.path, models, "nothing was backed up: train again, or restore a backup")
        for model in models:
            _copy_model(store.path / "models" / model.version, folder / "models" / model.version)
            versions.append(model.version)
        if live is not None and _copy_generation(store, live, folder):
            copied.append(live.number)
        copy_feedback(store.path, folder)  # it may have got events since; they are no documents

    report = store.backup(path, add_files)
    return Backup(
        report.sequence, report.documents, report.size_bytes, next(iter(copied), None), tuple(versions)
    )


def restore(path: Path, backup: Path) -> None:
    """Make a collection in the new folder `path` of a backup, after every digest in it was held against it.

    Its live generation may be missing: `Collection.restore_derived` sees to that.

    Raises:
        CollectionNotFound: no backup in that folder.
        CollectionExists: something lies at `path`.
        CorruptData: documents or models are not what was written; nothing was restored.
    """
    if backup.is_dir():
        _, models = registered_in(backup)
        _refuse_damaged(backup, models, "nothing was restored: use another backup")
    Store.restore(path, backup)


def registered_in(folder: Path) -> tuple[GenerationRecord | None, list[ModelRecord]]:
    """Return the live generation and the models registered by the store in a folder."""
    with Store.open(folder, readonly=True, accept_loss=True) as copy:
        return copy.live_generation(), copy.models()


def _refuse_damaged(folder: Path, models: Iterable[ModelRecord], consequence: str) -> None:
    for model in models:
        for damage in damaged_model_files(folder, model):
            raise CorruptData(f"{damage}; {consequence}")


def _copy_model(source: Path, target: Path) -> None:
    """Copy a model's files; a newer index that it was given of its own may take the place of an older one."""
    for attempt in range(_ATTEMPTS):
        try:
            shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(".*"))
        except shutil.Error:
            if attempt == _ATTEMPTS - 1:
                raise
            shutil.rmtree(target, ignore_errors=True)
        else:
            return


def _copy_generation(store: Store, live: GenerationRecord, folder: Path) -> bool:
    """Copy a generation's files; return True if they are complete."""
    try:
        lease = lease_registered(store, live)
    except CorruptData:
        return False
    if lease is None:
        return False  # retired since: there were four builds in the time of this backup
    source = generation_folder(store, live.number)
    copy = folder / source.relative_to(store.path)
    try:
        shutil.copytree(source, copy, symlinks=True)
        manifest = Manifest.read(copy)
        manifest.verify(copy)
        whole = manifest.digest == live.manifest_digest
    except DsearchError:
        whole = False
    finally:
        lease.release()
    if not whole:
        shutil.rmtree(copy, ignore_errors=True)
    return whole


def export_lines(store: Store, write: Callable[[bytes], object], filter: object = None) -> int:
    """Write every live document as a line of JSON, by id, in one state; return their number.

    Args:
        store: whose documents.
        write: of the file that they go to.
        filter: only those that match; see the store's filters.py.

    Raises:
        InvalidRequest: not a filter.
    """
    count = 0
    for document in store.export(filter):
        write(orjson.dumps(record_of(document)) + b"\n")
        count += 1
    return count


def export_beir(store: Store, folder: Path, filter: object = None) -> int:
    """Write every live document into a BEIR folder, which gets no queries and no judgements; their number."""
    counted = _Counted(store.export(filter))
    write_beir(folder, counted, [], {})
    return counted.count


class _Counted:
    """Documents as they are, and how many there were."""

    def __init__(self, documents: Iterable[Document]):
        self._documents = documents
        self.count = 0

    def __iter__(self) -> Iterator[Document]:
        for document in self._documents:
            self.count += 1
            yield document

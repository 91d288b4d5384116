"""Backup, restoration and export of a collection.

A backup copies a collection while it is being written to. The store's copy is the state after one operation
(store/folders.py). Beside it go the files of the models that this copy registers, the live generation, and
the feedback. Files of models and generations never change, and a lease protects the generation during the
copy.

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
from dsearch.engine.models.confidence import FILE_NAME as CALIBRATIONS
from dsearch.errors import CorruptData, DsearchError, InsufficientStorage
from dsearch.index import Manifest
from dsearch.index.durable import FULL
from dsearch.store import GenerationRecord, ModelRecord, Store
from dsearch.store.feedback import copy_feedback
from dsearch.store.folders import restore_collection
from dsearch.types import Document

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Backup:
    """A complete backup.

    Attributes:
        sequence: last operation that it contains.
        documents: number of live documents.
        size_bytes: size of all its files.
        generation: number of its generation; None if the files were incomplete, and a restore rebuilds it.
        models: its versions.
    """

    sequence: int
    documents: int
    size_bytes: int
    generation: int | None
    models: tuple[str, ...]


def back_up(store: Store, path: Path) -> Backup:
    """Copy a collection into the new folder `path`; atomic, and others may write meanwhile.

    Raises:
        Conflict: `path` exists.
        CorruptData: the files of a model differ from the register.
        InsufficientStorage: the disk is full.
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
        if (store.path / CALIBRATIONS).is_file():
            shutil.copyfile(store.path / CALIBRATIONS, folder / CALIBRATIONS)
        copy_feedback(store.path, folder)  # it may have later events, which no document depends on

    try:
        report = store.backup(path, add_files)
    except (InsufficientStorage, OSError) as error:
        if isinstance(error, OSError) and error.errno not in FULL:
            raise
        raise InsufficientStorage(
            f"{path}: the disk of the backup is full; nothing stands there, and the collection is as it was: "
            "free space there, or give another place"
        ) from error
    return Backup(
        report.sequence, report.documents, report.size_bytes, next(iter(copied), None), tuple(versions)
    )


def restore(path: Path, backup: Path) -> None:
    """Restore a backup into the new folder `path`, after verifying every digest.

    The live generation may be missing; `Collection.restore_derived` rebuilds it.

    Raises:
        CollectionNotFound: no backup in that folder.
        CollectionExists: `path` exists.
        CorruptData: documents or models are damaged; nothing was restored.
    """
    if backup.is_dir():
        _, models = registered_in(backup)
        _refuse_damaged(backup, models, "nothing was restored: use another backup")
    restore_collection(path, backup)


def registered_in(folder: Path) -> tuple[GenerationRecord | None, list[ModelRecord]]:
    """Return the live generation and the models registered by the store in a folder."""
    with Store.open(folder, readonly=True, accept_loss=True) as copy:
        return copy.live_generation(), copy.models()


def _refuse_damaged(folder: Path, models: Iterable[ModelRecord], consequence: str) -> None:
    for model in models:
        for damage in damaged_model_files(folder, model):
            raise CorruptData(f"{damage}; {consequence}")


def _copy_model(source: Path, target: Path) -> None:
    """Copy a model's files; a newer document index of the model may replace an older one."""
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
        return False  # retired: there were four builds during this backup
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
        store: store of the documents.
        write: receives each line.
        filter: condition on documents; see store/filters.py.

    Raises:
        InvalidRequest: not a filter.
    """
    count = 0
    for document in store.export(filter):
        write(orjson.dumps(record_of(document)) + b"\n")
        count += 1
    return count


def export_beir(store: Store, folder: Path, filter: object = None) -> int:
    """Write every live document into a BEIR folder without queries and judgements; return their number."""
    counted = _Counted(store.export(filter))
    write_beir(folder, counted, [], {})
    return counted.count


class _Counted:
    """Iterator over documents that counts them."""

    def __init__(self, documents: Iterable[Document]):
        self._documents = documents
        self.count = 0

    def __iter__(self) -> Iterator[Document]:
        for document in self._documents:
            self.count += 1
            yield document

"""Leases and retention: read locks on the folders of generations, and the deletion of old ones.

A read lock keeps a generation's folder from being deleted while a process uses it.

Readers hold a shared flock on the folder; deletion takes an exclusive one and skips the folder if it cannot.
The operating system releases the lock when a process dies, whatever the cause. The lock is on the folder
itself and needs no file, so a home on a read-only disk can be read too.

A lease ends when its collection is closed, or with the last reference to a replaced generation.

The last few generations stay; older ones are deleted as soon as no process reads them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary, finalize

from dsearch.engine.indexing.ingest import generation_folder
from dsearch.engine.options import keyword_texts
from dsearch.errors import Command, CorruptData, DsearchError, Unavailable, UnsupportedFormat
from dsearch.index import Generation, remove_unfinished
from dsearch.index.generation import Texts
from dsearch.store import GenerationRecord, Store

KEEP = 3  # generations
_ATTEMPTS = 20
_NUMBER = re.compile(r"[0-9]{6,9}")

_leases: WeakKeyDictionary[Generation, finalize[..., Generation]] = WeakKeyDictionary()


class Lease:
    """Lock on a generation's folder, until `release`.

    Raises:
        FileNotFoundError: the folder is missing.
    """

    def __init__(self, folder: Path):
        self._file: int | None = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._file, fcntl.LOCK_SH)  # blocks only while another process deletes

    def release(self) -> None:
        """Release the lock; safe to call twice."""
        file, self._file = self._file, None  # first: closed twice, it could be another's file by then
        if file is not None:
            os.close(file)


@contextmanager
def alone_with(folder: Path) -> Generator[bool]:
    """Yield True if no process holds the folder; no other process can then acquire it during the block."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(file)


def open_live(store: Store) -> Generation | None:
    """Open the live generation, leased for the life of the object; None before the first.

    Raises:
        CorruptData: it is missing or damaged.
    """
    for _ in range(_ATTEMPTS):
        live = store.live_generation()
        if live is None:
            return None
        generation = open_registered(store, live)
        if generation is not None:
            return generation
        # It was retired meanwhile, so another one is live.
    raise Unavailable(f"{store.path}: generations change faster than they can be opened; try again")


def open_registered(store: Store, record: GenerationRecord) -> Generation | None:
    """Open a generation, leased for the life of the object; None if it is no longer registered.

    Raises:
        CorruptData: it is registered, but missing or damaged.
    """
    lease = lease_registered(store, record)
    if lease is None:
        return None
    try:
        folder = generation_folder(store, record.number)
        return _open(folder, record.manifest_digest, lease, partial(keyword_texts, store))
    except BaseException as error:
        lease.release()
        if isinstance(error, CorruptData | UnsupportedFormat):
            raise type(error)(str(error), hint=how_to_build(store.name)) from error
        raise


def how_to_build(collection: str) -> Command:
    """Hint that rebuilds the generation."""
    return Command("refresh", ("-c", collection))


def lease_registered(store: Store, record: GenerationRecord) -> Lease | None:
    """Lease a generation; None if it is no longer registered.

    Raises:
        CorruptData: it is registered, but missing.
    """
    folder = generation_folder(store, record.number)
    try:
        lease = Lease(folder)
    except OSError as error:
        if not _registered(store, record):
            return None
        raise CorruptData(
            f"{folder}: the folder of a registered generation cannot be opened ({error}); build the "
            "generation again",
            hint=how_to_build(store.name),
        ) from error
    try:
        # Checked after leasing: a leased generation stays, an unleased one could be retired at any time.
        if _registered(store, record):
            return lease
    except BaseException:
        lease.release()
        raise
    lease.release()
    return None


def open_leased(folder: Path, digest: str) -> Generation:
    """Open a built but unregistered generation, leased for the life of the object."""
    lease = Lease(folder)
    try:
        return _open(folder, digest, lease)
    except BaseException:
        lease.release()
        raise


def _open(folder: Path, digest: str, lease: Lease, texts: Texts | None = None) -> Generation:
    generation = Generation.open(folder, digest=digest, texts=texts)
    _leases[generation] = finalize(generation, lease.release)
    return generation


def release(generation: Generation) -> None:
    """End the lease of an open generation now, before the object is gone; safe to call twice."""
    lease = _leases.get(generation.original)
    if lease is not None:
        lease()


def _registered(store: Store, record: GenerationRecord) -> bool:
    return any(
        (candidate.number, candidate.manifest_digest) == (record.number, record.manifest_digest)
        for candidate in store.generations()
    )


def retire(store: Store, keep: int = KEEP) -> list[int]:
    """Retire all but the live generation and the `keep` newest; return the numbers of the retired ones.

    A generation that any process reads stays until the next call.
    """
    return [number for number in store.retirable_generations(keep) if retire_one(store, number)]


def retire_one(store: Store, number: int) -> bool:
    """Retire a generation that is not live, unless a reader holds it; return True if it was retired.

    It is unregistered first; a crash after that leaves a folder that `clear` removes.
    """
    folder = generation_folder(store, number)
    if not folder.is_dir():
        store.retire_generation(number)
        return True
    with alone_with(folder) as alone:
        if alone:
            store.retire_generation(number)
            _remove(folder)
        return alone


def strike_missing(store: Store) -> list[int]:
    """Unregister generations without a folder, except the live one; return their numbers."""
    live = store.live_generation()
    gone = [
        old.number
        for old in store.generations()
        if (live is None or old.number != live.number) and not generation_folder(store, old.number).is_dir()
    ]
    for number in gone:
        store.retire_generation(number)
    return gone


def tidy(store: Store) -> None:
    """Unregister missing generations and retire unused ones; completes the repair of a lost generation.

    Errors of the disk are ignored; the next call tries again.
    """
    with contextlib.suppress(DsearchError, OSError):
        strike_missing(store)
        retire(store)


def clear(store: Store) -> list[str]:
    """Remove folders that no register entry names: unfinished builds, unregistered generations; return them.

    Called by the writer only, and not during a build. Unregistered trained models stay, since they cannot be
    recomputed.
    """
    generations = store.path / "generations"
    if not generations.is_dir():
        return []
    gone = remove_unfinished(generations)
    registered = {generation_folder(store, generation.number).name for generation in store.generations()}
    for folder in sorted(generations.iterdir()):
        if _NUMBER.fullmatch(folder.name) and folder.name not in registered and folder.is_dir():
            with alone_with(folder) as alone:
                if alone:
                    _remove(folder)
                    gone.append(folder.name)
    models = store.path / "models"
    for folder in sorted(models.glob(".*.writing")) if models.is_dir() else []:
        _remove(folder)
        gone.append(folder.name)
    return gone


def _remove(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)

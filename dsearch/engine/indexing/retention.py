"""Retention: the last few generations stay; older ones are deleted as soon as no process reads them."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

from dsearch.engine.indexing.ingest import generation_folder
from dsearch.engine.indexing.leases import alone_with
from dsearch.errors import DsearchError
from dsearch.index import remove_unfinished
from dsearch.store import Store

KEEP = 3

_NUMBER = re.compile(r"[0-9]{6,9}")


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

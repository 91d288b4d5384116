"""Versions of a model: which one answered before, and getting rid of one."""

from __future__ import annotations

import os
import shutil

from dsearch.engine.models import UNTRAINED
from dsearch.errors import Conflict
from dsearch.index.durable import sync_folder
from dsearch.store import Store


def way_back(store: Store) -> list[str]:
    """The versions to go back to, one after the other; the last is live, the first the untrained one.

    Like the pages that a browser goes back to: a version that was promoted lies on top of the one that
    answered before; going back to one, by rollback or by promoting it again, takes away what lies above.
    """
    there = {UNTRAINED, *(model.version for model in store.models())}
    pile = [UNTRAINED]
    for version in reversed(store.model_history()):
        if version in pile:
            del pile[pile.index(version) + 1 :]
        else:
            pile.append(version)
    return [version for version in pile if version in there]


def before_live(store: Store) -> str:
    """The version that a rollback promotes.

    Raises:
        Conflict: the untrained one is live, and nothing lies before it.
    """
    pile = way_back(store)
    if len(pile) < 2:
        raise Conflict(
            f"{pile[-1]} answers, and nothing answered before it; promote a version with: "
            "dsearch promote VERSION"
        )
    return pile[-2]


def delete_version(store: Store, version: str) -> None:
    """Strike a version off the register, then remove its files.

    Its number is not given again: what was answered by it keeps naming it.

    Raises:
        ModelNotFound, InvalidRequest (v0).
        Conflict: it answers, or another was trained from it.
    """
    store.delete_model(version)
    folder = store.path / "models" / version
    # Under a name that the next opening clears, should this be cut short.
    doomed = folder.with_name(f".{version}.deleted.writing")
    if folder.exists():
        shutil.rmtree(doomed, ignore_errors=True)
        os.rename(folder, doomed)
        sync_folder(doomed.parent)
        shutil.rmtree(doomed)

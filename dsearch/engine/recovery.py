"""A collection whose acknowledged writes are missing, made to go on with those that are there.

Somebody has to want that, so nothing does it unasked: whoever has a backup may rather restore it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dsearch.errors import CorruptData
from dsearch.store import Store


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a recovery found.

    Attributes:
        name: of the collection.
        loss: what was missing, in words; None where nothing was, and nothing was done.
        documents: that are there now.
    """

    name: str
    loss: str | None
    documents: int


def accept_loss(path: Path) -> str | None:
    """Let the collection in folder `path` go on with what its database has; what is missing, in words.

    Numbers of operations that were lost are not used again. None: nothing is missing, and nothing was done.

    Raises:
        CollectionNotFound, HomeLocked, UnsupportedFormat.
        CorruptData: the database itself cannot be read, so that there is nothing to go on with.
    """
    try:
        with Store.open(path):
            return None
    except CorruptData as error:
        loss = str(error)
    with Store.open(path, accept_loss=True):
        return loss

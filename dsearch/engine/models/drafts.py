"""Draft heads: heads that are handed in to be asked for a while, and are no versions; draws of documents.

A training elsewhere hands its head in after each step and attends by it. A draft is in memory alone, answers
those who hand it in, and is never changed: a later one has another name. Draws wait for their rewards
likewise; see `dsearch.engine.draws`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsearch.attention.arrays import is_tensor
from dsearch.engine.models.temporary import Bounds, Temporary

if TYPE_CHECKING:
    from torch import Tensor

    from dsearch.attention.retrieval.head import Head

MAX_DRAFTS = 8  # of an owner
MAX_OWNER_BYTES = 64 * 1024 * 1024
MAX_BYTES = 256 * 1024 * 1024  # of all owners
EXPIRY_S = 600.0  # after the last use
MAX_DRAWS = 64  # of an owner
MAX_DRAW_BYTES = 16 * 1024 * 1024  # of an owner, and four times as much of all


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A draft.

    Attributes:
        id: its name.
        head: the head; it is shared.
        parent: version whose encoder and documents it answers with.
        owner: who handed it in: the id of an API key, or "".
        size: bytes of its tensors.
        moments: state of the optimizer that made it; None for one that was handed in.
    """

    id: str
    head: Head
    parent: str
    owner: str
    size: int
    moments: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Content:
    head: Head
    parent: str
    moments: dict[str, Any] | None


class DraftHeads:
    """The drafts of a collection.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._heads = Temporary[_Content]("draft", "hand the head in again", _of_heads, clock)

    def add(self, head: Head, parent: str, owner: str, moments: dict[str, Any] | None = None) -> DraftHead:
        """Keep a head for a while, with the state of the optimizer that made it.

        Raises:
            InvalidRequest: it is larger than all drafts of an owner may be.
        """
        size = sum(tensor.nbytes for tensor in [*head.own_tensors().values(), *_tensors(moments)])
        id = self._heads.add(_Content(head, parent, moments), owner, size)
        return DraftHead(id, head, parent, owner, size, moments)

    def get(self, id: str, owner: str) -> DraftHead:
        """Return a draft of its owner, which lives on from now.

        Raises:
            Gone: it expired, made room, or is of another owner.
        """
        entry = self._heads.get(id, owner)
        content = entry.item
        return DraftHead(id, content.head, content.parent, owner, entry.size, content.moments)

    def drop(self, id: str, owner: str) -> bool:
        """Forget a draft of its owner; return True if there was one."""
        return self._heads.drop(id, owner)

    @property
    def size(self) -> int:
        """Bytes of all drafts."""
        return self._heads.size

    def __len__(self) -> int:
        return len(self._heads)


class Draws(Temporary[Any]):
    """The draws of a collection that wait for their rewards.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        super().__init__("draw", "draw again", _of_draws, clock)


def _of_heads() -> Bounds:
    return Bounds(MAX_DRAFTS, MAX_OWNER_BYTES, MAX_BYTES, EXPIRY_S)


def _of_draws() -> Bounds:
    return Bounds(MAX_DRAWS, MAX_DRAW_BYTES, 4 * MAX_DRAW_BYTES, EXPIRY_S)


def _tensors(moments: dict[str, Any] | None) -> list[Tensor]:
    """The tensors in the state of an optimizer."""
    if moments is None:
        return []
    states: dict[Any, dict[str, Any]] = moments["state"]
    return [value for state in states.values() for value in state.values() if is_tensor(value)]

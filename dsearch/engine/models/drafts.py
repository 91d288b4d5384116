"""Draft heads: heads that are handed in to be asked for a while, and are not versions.

A training elsewhere hands its head in after each step and attends by it. A draft is in memory alone, answers
those who hand it in, and is never changed: a later one has another name.

`Temporary` holds them in memory for their owners, bounded by count, bytes and expiry. The oldest of an owner
make room for new ones, unused ones expire, and a restart forgets them all. Each answers its owner alone.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from dsearch.errors import Gone, InvalidRequest

if TYPE_CHECKING:
    from dsearch.attention.retrieval.head import Head

MAX_DRAFTS = 8  # of an owner
MAX_OWNER_BYTES = 64 * 1024 * 1024
MAX_BYTES = 256 * 1024 * 1024  # of all owners
EXPIRY_S = 600.0  # after the last use

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of what is kept.

    Attributes:
        count: things of an owner.
        owner_bytes: of all things of an owner.
        all_bytes: of all owners.
        expiry_s: seconds after the last use.
    """

    count: int
    owner_bytes: int
    all_bytes: int
    expiry_s: float


@dataclass(frozen=True, slots=True)
class Entry(Generic[Item]):
    """A thing with its owner, its bytes, and the time of its end."""

    item: Item
    owner: str
    size: int
    expires: float


class Temporary(Generic[Item]):
    """Things of one kind.

    Args:
        kind: the kind's name in errors.
        again: advice in the error for a thing that is gone.
        bounds: returns the limits.
        clock: returns seconds.
    """

    def __init__(
        self,
        kind: str,
        again: str,
        bounds: Callable[[], Bounds],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._kind, self._again, self._bounds, self._clock = kind, again, bounds, clock
        self._lock = threading.Lock()
        self._entries = OrderedDict[str, Entry[Item]]()  # the least recently used first

    def add(self, item: Item, owner: str, size: int) -> str:
        """Keep a thing for a while; return its id.

        Raises:
            InvalidRequest: it is larger than all things of an owner may be.
        """
        bounds = self._bounds()
        if size > bounds.owner_bytes:
            raise InvalidRequest(f"a {self._kind} of {size} bytes; use at most {bounds.owner_bytes}")
        with self._lock:
            self._expire()
            own = [(id, entry.size) for id, entry in self._entries.items() if entry.owner == owner]
            while own and (
                len(own) >= bounds.count or sum(of_one for _, of_one in own) + size > bounds.owner_bytes
            ):
                del self._entries[own.pop(0)[0]]
            while self._entries and self.size + size > bounds.all_bytes:
                self._entries.popitem(last=False)
            id = secrets.token_hex(12)
            self._entries[id] = Entry(item, owner, size, self._clock() + bounds.expiry_s)
            return id

    def get(self, id: str, owner: str) -> Entry[Item]:
        """Return a thing of its owner, which lives on from now.

        Raises:
            Gone: it expired, made room, or is of another owner.
        """
        with self._lock:
            entry = replace(self._require(id, owner), expires=self._clock() + self._bounds().expiry_s)
            self._entries[id] = entry
            self._entries.move_to_end(id)
            return entry

    def drop(self, id: str, owner: str) -> bool:
        """Forget a thing of its owner; return True if there was one."""
        with self._lock:
            entry = self._entries.get(id)
            if entry is None or entry.owner != owner:
                return False
            del self._entries[id]
            return True

    @property
    def size(self) -> int:
        """Bytes of all things."""
        return sum(entry.size for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def _require(self, id: str, owner: str) -> Entry[Item]:
        self._expire()
        entry = self._entries.get(id)
        if entry is None or entry.owner != owner:
            raise Gone(f"{self._kind} {id[:40]!r} is gone; {self._again}")
        return entry

    def _expire(self) -> None:
        now = self._clock()
        for id in [id for id, entry in self._entries.items() if entry.expires <= now]:
            del self._entries[id]


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A draft.

    Attributes:
        id: its name.
        head: the head; it is shared.
        parent: version whose encoder and documents it answers with.
        owner: who handed it in: the id of an API key, or "".
        size: bytes of its tensors.
    """

    id: str
    head: Head
    parent: str
    owner: str
    size: int


@dataclass(frozen=True, slots=True)
class _Content:
    head: Head
    parent: str


class DraftHeads:
    """The drafts of a collection.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._heads = Temporary[_Content]("draft", "hand the head in again", _of_heads, clock)

    def add(self, head: Head, parent: str, owner: str) -> DraftHead:
        """Keep a head for a while.

        Raises:
            InvalidRequest: it is larger than all drafts of an owner may be.
        """
        size = sum(tensor.nbytes for tensor in head.own_tensors().values())
        id = self._heads.add(_Content(head, parent), owner, size)
        return DraftHead(id, head, parent, owner, size)

    def get(self, id: str, owner: str) -> DraftHead:
        """Return a draft of its owner, which lives on from now.

        Raises:
            Gone: it expired, made room, or is of another owner.
        """
        entry = self._heads.get(id, owner)
        content = entry.item
        return DraftHead(id, content.head, content.parent, owner, entry.size)

    def drop(self, id: str, owner: str) -> bool:
        """Forget a draft of its owner; return True if there was one."""
        return self._heads.drop(id, owner)

    @property
    def size(self) -> int:
        """Bytes of all drafts."""
        return self._heads.size

    def __len__(self) -> int:
        return len(self._heads)


def _of_heads() -> Bounds:
    return Bounds(MAX_DRAFTS, MAX_OWNER_BYTES, MAX_BYTES, EXPIRY_S)

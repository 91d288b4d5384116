"""Things that are kept in memory for their owners for a while: bounded by count, bytes and expiry.

The oldest of an owner make room for new ones, unused ones expire, and a restart forgets them all. Each
answers its owner alone.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from dsearch.errors import Gone, InvalidRequest

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

    def take(self, id: str, owner: str) -> Item:
        """Return a thing of its owner and forget it: of several that ask, one gets it.

        Raises:
            Gone: as `get`.
        """
        with self._lock:
            item = self._require(id, owner).item
            del self._entries[id]
            return item

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

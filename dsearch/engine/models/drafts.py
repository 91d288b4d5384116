"""Draft heads: heads that are handed in to be asked for a while, and are not versions.

A training elsewhere hands its head in after each step and attends by it. A draft is in memory only, answers
its owner only, and is never changed: a later one has another name. Drafts are bounded by count, bytes and
expiry: the oldest of an owner make room for new ones, unused ones expire, and a restart forgets them all.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsearch.errors import Gone, InvalidRequest

if TYPE_CHECKING:
    from dsearch.attention.retrieval.head import Head

MAX_DRAFTS = 8  # of an owner
MAX_OWNER_BYTES = 64 * 1024 * 1024
MAX_BYTES = 256 * 1024 * 1024  # of all owners
EXPIRY_S = 600.0  # after the last use


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


class DraftHeads:
    """The drafts of a collection; for many threads.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()
        # Draft and the time of its end; the least recently used first.
        self._drafts = OrderedDict[str, tuple[DraftHead, float]]()

    def add(self, head: Head, parent: str, owner: str) -> DraftHead:
        """Keep a head for a while.

        Raises:
            InvalidRequest: it is larger than all drafts of an owner may be.
        """
        size = sum(tensor.nbytes for tensor in head.own_tensors().values())
        if size > MAX_OWNER_BYTES:
            raise InvalidRequest(f"a draft of {size} bytes; use at most {MAX_OWNER_BYTES}")
        draft = DraftHead(secrets.token_hex(12), head, parent, owner, size)
        with self._lock:
            self._expire()
            own = [other for other, _ in self._drafts.values() if other.owner == owner]
            while own and (
                len(own) >= MAX_DRAFTS or sum(other.size for other in own) + size > MAX_OWNER_BYTES
            ):
                del self._drafts[own.pop(0).id]
            while self._drafts and self.size + size > MAX_BYTES:
                self._drafts.popitem(last=False)
            self._drafts[draft.id] = draft, self._clock() + EXPIRY_S
        return draft

    def get(self, id: str, owner: str) -> DraftHead:
        """Return a draft of its owner, which lives on from now.

        Raises:
            Gone: it expired, made room, or is of another owner.
        """
        with self._lock:
            self._expire()
            draft = self._of_owner(id, owner)
            if draft is None:
                raise Gone(f"draft {id[:40]!r} is gone; hand the head in again")
            self._drafts[id] = draft, self._clock() + EXPIRY_S
            self._drafts.move_to_end(id)
            return draft

    def drop(self, id: str, owner: str) -> bool:
        """Forget a draft of its owner; return True if there was one."""
        with self._lock:
            if self._of_owner(id, owner) is None:
                return False
            del self._drafts[id]
            return True

    @property
    def size(self) -> int:
        """Bytes of all drafts."""
        return sum(draft.size for draft, _ in self._drafts.values())

    def __len__(self) -> int:
        return len(self._drafts)

    def _of_owner(self, id: str, owner: str) -> DraftHead | None:
        draft, _ = self._drafts.get(id, (None, 0.0))
        return draft if draft is not None and draft.owner == owner else None

    def _expire(self) -> None:
        now = self._clock()
        for id in [id for id, (_, end) in self._drafts.items() if end <= now]:
            del self._drafts[id]

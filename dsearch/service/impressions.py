"""`Impressions`: the pages that were answered lately, in memory, for the feedback that may come.

Queries are not written down. A page gets to the disk with the first event about it (routes_feedback.py); a
page that nobody reacts to is forgotten when newer ones need its room.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from dataclasses import replace

from starlette.requests import Request

from dsearch.engine.impressions import Drawn, explored, impression_of
from dsearch.service.ids import new_id
from dsearch.store import Impression
from dsearch.types import SearchResult

MAX_BYTES = 64 * 1024 * 1024
_ENTRY_BYTES = 600  # of an impression without its texts, with its place in the table
_HIT_BYTES = 130  # of a hit's id and weight, without the characters of the id


class Impressions:
    """The newest pages, as many as fit.

    Args:
        max_bytes: of all of them, about.
        explore: the share of pages on which two positions are left to a coin, unless a search says otherwise.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, explore: float = 0.0):
        self._max_bytes, self.explore = max_bytes, explore
        self._bytes = 0
        self._pages: OrderedDict[tuple[str, str], Impression] = OrderedDict()
        self._lock = threading.Lock()
        self._coins = random.SystemRandom()

    def show(
        self, collection: str, result: SearchResult, *, key: str = "", explore: float | None = None
    ) -> tuple[SearchResult, str, Drawn | None]:
        """Remember a page: as it is to be shown, its query id, and what was left to a coin.

        Args:
            collection: that was searched.
            result: what was found.
            key: who asked.
            explore: the share of such pages with two positions left to a coin; the service's when None.
        """
        share = self.explore if explore is None else explore
        hits, drawn = explored(result.hits, share, self._coins)
        if drawn is not None:
            result = replace(result, hits=hits)
        query_id = new_id()
        self._add(collection, impression_of(result, query_id, key=key, drawn=drawn))
        return result, query_id, drawn

    def find(self, collection: str, query_id: str) -> Impression | None:
        """The page of this id, if it is still remembered."""
        with self._lock:
            return self._pages.get((collection, query_id))

    @property
    def bytes(self) -> int:
        """What the remembered pages take, about."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._pages)

    def _add(self, collection: str, page: Impression) -> None:
        with self._lock:
            self._pages[collection, page.query_id] = page
            self._bytes += _size(page)
            while self._bytes > self._max_bytes:
                _, oldest = self._pages.popitem(last=False)
                self._bytes -= _size(oldest)


def _size(page: Impression) -> int:
    # Four bytes a character at most: what Python keeps for text with an emoji.
    characters = len(page.query) + sum(len(id) for id in page.ids)
    return _ENTRY_BYTES + _HIT_BYTES * len(page.ids) + 4 * characters


def asker(request: Request) -> str:
    """Who asks, by the API key; "" where none is needed."""
    return getattr(request.state, "key_id", None) or ""

"""Feedback events: each is stored in its collection with the page it refers to and its position there.

`Impressions` caches recently answered pages in memory, for feedback that may follow. Queries are not written
to disk: a page is stored only with the first event about it (routes/search.py). A page without any event is
evicted when newer ones need its room.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from starlette.requests import Request

from dsearch.engine.feedback import Episodes, RandomPair, TaskOutcome, explored, impression_of
from dsearch.errors import InvalidRequest, amount
from dsearch.service.collections import Catalogue
from dsearch.service.errors import UnknownQuery
from dsearch.service.schemas.feedback import EventGiven
from dsearch.service.wire.json import new_id
from dsearch.service.wire.requests import repr_of
from dsearch.store import Event, FeedbackStore, Impression, StoredEvents
from dsearch.training import ACTIONS
from dsearch.types import CLIENT, SearchResult


@dataclass(frozen=True, slots=True, eq=False)
class Feedback:
    """The events of one request, to be written by the feedback worker.

    Attributes:
        catalogue: catalogue of the collections.
        impressions: cache of recent pages.
        collection: name of the collection.
        key: identity of the request's API key; "" if none is needed.
        events: events of the request.
    """

    catalogue: Catalogue
    impressions: Impressions
    collection: str
    key: str
    events: Sequence[EventGiven]

    def __call__(self) -> StoredEvents:
        """Write the events, all or none; durable on return.

        Raises:
            UnknownQuery: a page that is neither cached nor stored, and no text of the query.
            InvalidRequest: a document that was not shown, a position that it did not have, another query.
            CollectionNotFound, Conflict, FeedbackFull, InsufficientStorage, Unavailable.
        """
        now = time.time()
        with self.catalogue.using(self.collection) as collection:
            pages: dict[str, Impression] = {}
            names = dict.fromkeys((self.collection, *self.catalogue.names_of(collection.name)))
            events = [
                self._event(n, event, collection.feedback, pages, now, names)
                for n, event in enumerate(self.events)
            ]
            return collection.feedback.record(list(pages.values()), events)

    def _event(
        self,
        number: int,
        event: EventGiven,
        store: FeedbackStore,
        pages: dict[str, Impression],
        now: float,
        names: Iterable[str],
    ) -> Event:
        key = self.key or (CLIENT + event.client_id if event.client_id else "")
        page = self._page(number, event, store, pages, key, now, names)
        pages[page.query_id] = page
        position = event.ordinal
        if page.ids:
            position = page.position_of(event.object_id)
            if position is None and not ACTIONS[event.action_name].explicit:
                raise InvalidRequest(
                    f"{number}.object_id={repr_of(event.object_id)}; it was not among the first "
                    f"{amount(len(page.ids), 'hit')} of query_id {page.query_id}: use the id of a hit of "
                    "that answer"
                )
            if None not in (position, event.ordinal) and position != event.ordinal:
                raise InvalidRequest(
                    f"{number}.event_attributes.position.ordinal={event.ordinal}; {repr_of(event.object_id)} "
                    f"was shown at position {position}: use that, or leave it out"
                )
        time_s = page.shown_s if event.time_s is None else event.time_s
        return Event(
            event_id=event.event_id or _made_id(event, page),
            query_id=page.query_id,
            key=key,
            client_id=event.client_id,
            action=event.action_name,
            object_id=event.object_id,
            position=position,
            time_s=time_s,
            received_s=now,
        )

    def _page(
        self,
        number: int,
        event: EventGiven,
        store: FeedbackStore,
        pages: dict[str, Impression],
        key: str,
        now: float,
        names: Iterable[str],
    ) -> Impression:
        """Find the event's page in this request, the cache or the store, or make one of its words.

        The page may have been searched for by another of the collection's names.
        """
        query_id = event.query_id or "text-" + _digest([event.user_query])
        page = (
            pages.get(query_id)
            or next(filter(None, (self.impressions.find(name, query_id) for name in names)), None)
            or store.impression(query_id)
        )
        if page is None and event.user_query is None:
            raise UnknownQuery(
                f"{number}.query_id={repr_of(query_id)}; no search of this id is remembered: send events "
                "soon after the search, or give its words as user_query"
            )
        if page is None:
            assert event.user_query is not None
            return Impression(query_id, event.user_query, now, key=key)
        if event.user_query is not None and event.user_query != page.query:
            raise InvalidRequest(
                f"{number}.user_query={repr_of(event.user_query)}; query_id {page.query_id} names another "
                "query: leave one of the two out"
            )
        return page


def record_outcome(
    catalogue: Catalogue,
    episodes: Episodes,
    name: str,
    key: str,
    episode: str,
    outcome: TaskOutcome,
    client_id: str = "",
) -> StoredEvents:
    """Write what the outcome of an episode says about the documents of a collection; durable on return.

    Raises:
        UnknownEpisode: none of its searches there is remembered.
        InvalidRequest: a useful document that it neither found nor read.
        CollectionNotFound, Conflict, FeedbackFull, InsufficientStorage, Unavailable.
    """
    with catalogue.using(name) as collection:
        pages, events = episodes.feedback(
            key, episode, collection.name, outcome, client_id=client_id, now_s=time.time()
        )
        return collection.feedback.record(pages, events)


def _made_id(event: EventGiven, page: Impression) -> str:
    return _digest([page.query_id, event.client_id, event.action_name, event.object_id, event.timestamp])


def _digest(parts: list[str | None]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


MAX_BYTES = 64 * 1024 * 1024
_ENTRY_BYTES = 600  # of an impression without its texts, with its place in the table
_HIT_BYTES = 130  # of a hit's id and weight, without the characters of the id


class Impressions:
    """Cache of the newest pages, as many as fit.

    Args:
        max_bytes: approximate size limit.
        explore: share of pages on which two hits may change places at random, unless a search says otherwise.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, explore: float = 0.0):
        self._max_bytes, self.explore = max_bytes, explore
        self._bytes = 0
        self._pages: OrderedDict[tuple[str, str], Impression] = OrderedDict()
        self._lock = threading.Lock()
        self._coins = random.SystemRandom()

    def show(
        self, collection: str, result: SearchResult, *, key: str = "", explore: float | None = None
    ) -> tuple[SearchResult, str, RandomPair | None]:
        """Cache a page. Returns it as it is to be shown, its query id, and the positions drawn at random.

        Args:
            collection: name of the searched collection.
            result: result of the search.
            key: identity of the requester's API key.
            explore: share of pages on which two hits may change places at random; the service's when None.
        """
        share = self.explore if explore is None else explore
        hits, drawn = explored(result.hits, share, self._coins)
        if drawn is not None:
            result = replace(result, hits=hits)
        query_id = new_id()
        self._add(collection, impression_of(result, query_id, key=key, drawn=drawn))
        return result, query_id, drawn

    def find(self, collection: str, query_id: str) -> Impression | None:
        """Return the page of this id; None if it is not cached any more."""
        with self._lock:
            return self._pages.get((collection, query_id))

    @property
    def bytes(self) -> int:
        """Approximate size of the cached pages."""
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
    # At most four bytes a character: Python needs them for a text with an emoji.
    characters = len(page.query) + sum(len(id) for id in page.ids)
    return _ENTRY_BYTES + _HIT_BYTES * len(page.ids) + 4 * characters


def asker(request: Request) -> str:
    """Return the identity of the requester's API key; "" if none is needed."""
    return getattr(request.state, "key_id", None) or ""

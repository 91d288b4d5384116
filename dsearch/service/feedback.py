"""Events into a collection's feedback: each gets its page, and a position that the page says."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dsearch.errors import InvalidRequest
from dsearch.service.catalogue import Catalogue
from dsearch.service.errors import UnknownQuery
from dsearch.service.fields import shown
from dsearch.service.impressions import Impressions
from dsearch.service.requests_feedback import EventGiven
from dsearch.store import Event, FeedbackStore, Impression, Recorded
from dsearch.training import ACTIONS

CLIENT = "client:"  # before a client's id where it stands for a key


@dataclass(frozen=True, slots=True, eq=False)
class Feedback:
    """The events of one request, to be written by the feedback worker.

    Attributes:
        catalogue: of the collections.
        impressions: the pages that are remembered.
        collection: whose feedback.
        key: of the request; "" where none is needed.
        events: what was sent.
    """

    catalogue: Catalogue
    impressions: Impressions
    collection: str
    key: str
    events: Sequence[EventGiven]

    def __call__(self) -> Recorded:
        """Write them, all or none; durable on return.

        Raises:
            UnknownQuery: a page that is neither remembered nor stored, and no words of the query.
            InvalidRequest: a document that was not shown, a position that it did not have, another query.
            CollectionNotFound, Conflict, FeedbackFull, InsufficientStorage, Unavailable.
        """
        now = time.time()
        with self.catalogue.using(self.collection) as collection:
            pages: dict[str, Impression] = {}
            events = [
                self._event(n, one, collection.feedback, pages, now) for n, one in enumerate(self.events)
            ]
            return collection.feedback.record(list(pages.values()), events)

    def _event(
        self, number: int, one: EventGiven, store: FeedbackStore, pages: dict[str, Impression], now: float
    ) -> Event:
        key = self.key or (CLIENT + one.client_id if one.client_id else "")
        page = self._page(number, one, store, pages, key, now)
        pages[page.query_id] = page
        position = one.ordinal
        if page.ids:
            position = page.position_of(one.object_id)
            if position is None and not ACTIONS[one.action_name].explicit:
                raise InvalidRequest(
                    f"{number}.object_id={shown(one.object_id)}; it was not among the first {len(page.ids)} "
                    f"hits of query_id {page.query_id}: use the id of a hit of that answer"
                )
            if None not in (position, one.ordinal) and position != one.ordinal:
                raise InvalidRequest(
                    f"{number}.event_attributes.position.ordinal={one.ordinal}; {shown(one.object_id)} was "
                    f"shown at position {position}: use that, or leave it out"
                )
        time_s = page.shown_s if one.time_s is None else one.time_s
        return Event(
            event_id=one.event_id or _made_id(one, page),
            query_id=page.query_id,
            key=key,
            client_id=one.client_id,
            action=one.action_name,
            object_id=one.object_id,
            position=position,
            time_s=time_s,
            received_s=now,
        )

    def _page(
        self,
        number: int,
        one: EventGiven,
        store: FeedbackStore,
        pages: dict[str, Impression],
        key: str,
        now: float,
    ) -> Impression:
        """What the event is about: this request's, remembered, stored, or made of the words it came with."""
        query_id = one.query_id or "text-" + _digest([one.user_query])
        page = (
            pages.get(query_id)
            or self.impressions.find(self.collection, query_id)
            or store.impression(query_id)
        )
        if page is None and one.user_query is None:
            raise UnknownQuery(
                f"{number}.query_id={shown(query_id)}; no search of this id is remembered: send events soon "
                "after the search, or give its words as user_query"
            )
        if page is None:
            assert one.user_query is not None
            return Impression(query_id, one.user_query, now, key=key)
        if one.user_query is not None and one.user_query != page.query:
            raise InvalidRequest(
                f"{number}.user_query={shown(one.user_query)}; query_id {page.query_id} names another query: "
                "leave one of the two out"
            )
        return page


def _made_id(one: EventGiven, page: Impression) -> str:
    return _digest([page.query_id, one.client_id, one.action_name, one.object_id, one.timestamp])


def _digest(parts: list[str | None]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

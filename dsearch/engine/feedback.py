"""Feedback of searches: pages of hits with swaps at random, and tasks of agents with their outcome.

People click the top hits, good or not. The effect of the position on clicks can be estimated only where the
position was random. Therefore two positions are drawn on a share of the pages, and a coin decides whether
their documents swap places (swap interventions: Joachims, Swaminathan and Schnabel, WSDM 2017, section 5).
Both outcomes are recorded. On these pages the two documents are exchangeable, so any difference between the
clicks of the two positions is an effect of the positions.

An agent names its task when it searches and reads, and tells in the end what was useful and whether it
succeeded. What it read of the pages that it saw says more than a click: it chose from titles to solve a task,
not from the top of a list to be done, so no position is corrected for, and what it saw and did not read is a
negative (training/data/clicks.py). The outcome grades what it read:

    success, useful                      used        grade 2
    success, read, nothing named useful  read        grade 1
    no success, useful                   read        grade 1
    read, others or none useful          dismissed   a negative, like what was not read
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dsearch.errors import InvalidRequest
from dsearch.search_options import MAX_EXPLORE
from dsearch.store import Event, Impression
from dsearch.store.feedback import SHOWN
from dsearch.types import Hit, SearchResult

DEPTH = 10  # positions that may be swapped
MAX_BYTES = 32 * 1024 * 1024
MAX_PAGES = 100  # of an episode; later ones are not joined to it
MAX_READ = 1000
_ENTRY_BYTES = 400  # of a page or a reading, with its place; the texts of a page come on top


@dataclass(frozen=True, slots=True)
class RandomPair:
    """Two positions of a page that were left to a coin.

    Attributes:
        pair: the positions, counted from 1, the upper one first.
        swapped: whether their documents changed places.
    """

    pair: tuple[int, int]
    swapped: bool


def explored(
    hits: Sequence[Hit], share: float, generator: random.Random
) -> tuple[list[Hit], RandomPair | None]:
    """Swap two positions at random on a share of the pages.

    Half of the pairs are neighbours, which costs the reader little; half are the first position and another
    one, which relates every position to the first.

    Args:
        hits: page from rank 1; other pages, and pages with fewer than two hits, are unchanged.
        share: share of pages with a pair, 0 to 0.2; on half of these the documents stay.
        generator: source of randomness.

    Returns:
        The hits in display order, ranks from 1, and the pair; None without one.

    Raises:
        InvalidRequest: a share out of range.
    """
    if not 0 <= share <= MAX_EXPLORE:
        raise InvalidRequest(f"explore={share}; use a number from 0 to {MAX_EXPLORE}")
    page = list(hits)
    last = min(len(page), DEPTH)
    if share == 0 or last < 2 or page[0].rank != 1 or generator.random() >= share:
        return page, None
    if generator.random() < 0.5:
        upper = generator.randint(1, last - 1)
        pair = (upper, upper + 1)
    else:
        pair = (1, generator.randint(2, last))
    swapped = generator.random() < 0.5
    if swapped:
        a, b = pair[0] - 1, pair[1] - 1
        page[a], page[b] = replace(page[b], rank=a + 1), replace(page[a], rank=b + 1)
    return page, RandomPair(pair, swapped)


def impression_of(
    result: SearchResult,
    query_id: str,
    *,
    key: str = "",
    drawn: RandomPair | None = None,
    shown_s: float | None = None,
) -> Impression:
    """Create the impression of a page, with its first hits.

    Args:
        result: result with its hits in display order.
        query_id: id of the search.
        key: API key of the request.
        drawn: pair drawn by `explored`.
        shown_s: time in seconds since 1970; now when None.
    """
    hits = result.hits[:SHOWN]
    return Impression(
        query_id=query_id,
        query=result.query,
        shown_s=time.time() if shown_s is None else shown_s,
        generation=result.stamp.generation,
        model=result.stamp.model,
        sequence=result.stamp.sequence,
        key=key,
        ids=tuple(hit.id for hit in hits),
        weights=tuple(hit.weight for hit in hits),
        first=hits[0].rank if hits else 1,
        pair=None if drawn is None else drawn.pair,
        swapped=drawn is not None and drawn.swapped,
    )


class UnknownEpisode(InvalidRequest):
    """An outcome of an episode of which no search is remembered."""

    code = "unknown_episode"


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """End of a task.

    Attributes:
        useful_ids: ids of the documents that helped; empty: not told.
        success: whether the task succeeded.
    """

    useful_ids: Sequence[str]
    success: bool

    def action(self, id: str) -> str:
        """Action on a document that was read, or named useful."""
        if id in self.useful_ids:
            return "used" if self.success else "read"
        return "dismissed" if self.useful_ids or not self.success else "read"


@dataclass(slots=True)
class _Episode:
    pages: list[tuple[str, Impression]] = field(default_factory=list["tuple[str, Impression]"])
    readings: set[tuple[str, str]] = field(default_factory=set["tuple[str, str]"])
    bytes: int = 0


class Episodes:
    """The newest episodes, as many as fit; safe in many threads.

    Args:
        max_bytes: approximate size limit.
    """

    def __init__(self, max_bytes: int = MAX_BYTES):
        self._max_bytes = max_bytes
        self._bytes = 0
        self._episodes: OrderedDict[tuple[str, str], _Episode] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """Approximate size of the episodes."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._episodes)

    def add_page(self, key: str, episode: str, collection: str, page: Impression) -> None:
        """Join a page to an episode, which begins with its first one.

        Args:
            key: identity of the agent; "" where none is needed.
            episode: its name of the task.
            collection: that was searched.
            page: page as it was shown.
        """
        with self._lock:
            task = self._episodes.setdefault((key, episode), _Episode())
            self._episodes.move_to_end((key, episode))
            if len(task.pages) < MAX_PAGES:
                task.pages.append((collection, page))
                characters = len(page.query) + sum(map(len, page.ids))
                self._grow(task, _ENTRY_BYTES + 130 * len(page.ids) + 4 * characters)

    def add_reading(self, key: str, episode: str, collection: str, id: str) -> None:
        """Note that an agent has read a document; of an unknown episode nothing is noted."""
        with self._lock:
            task = self._episodes.get((key, episode))
            if task is not None and len(task.readings) < MAX_READ and (collection, id) not in task.readings:
                task.readings.add((collection, id))
                self._grow(task, _ENTRY_BYTES + 4 * len(id))

    def collections(self, key: str, episode: str) -> list[str]:
        """Names of the collections that an episode searched.

        Raises:
            UnknownEpisode: none of its searches is remembered.
        """
        return list(dict.fromkeys(name for name, _ in self._remembered(key, episode)[0]))

    def feedback(
        self,
        key: str,
        episode: str,
        collection: str,
        outcome: TaskOutcome,
        *,
        client_id: str = "",
        now_s: float,
    ) -> tuple[list[Impression], list[Event]]:
        """Pages of an episode in a collection, and what its outcome says about their documents.

        A document stands for each of the episode's queries that showed it. Events have the ids of their
        places, so a report that is sent again counts once, and a contrary one conflicts.

        Args:
            key: identity of the agent.
            episode: its name of the task.
            collection: that was searched.
            outcome: end of the task; ids are those of this collection.
            client_id: user or run that the agent works for.
            now_s: seconds since 1970.

        Raises:
            UnknownEpisode: none of its searches here is remembered.
            InvalidRequest: a useful document that the episode neither found nor read.
        """
        every_page, every_reading = self._remembered(key, episode)
        pages = [page for name, page in every_page if name == collection]
        if not pages:
            raise UnknownEpisode(
                f"episode={episode[:80]!r}; it has not searched in {collection!r}: report to "
                "the collections that it did search"
            )
        readings = {id for name, id in every_reading if name == collection}
        seen = readings.union(*(page.ids for page in pages))
        if strange := next((id for id in outcome.useful_ids if id not in seen), None):
            raise InvalidRequest(
                f"useful_ids has {strange[:80]!r}, which no search of this episode showed; give ids of its "
                "results"
            )
        sender = key or (f"client:{client_id}" if client_id else "")
        judged = readings.union(outcome.useful_ids)
        events = [
            Event(
                event_id=_digest([episode, page.query_id, id]),
                query_id=page.query_id,
                key=sender,
                client_id=client_id,
                action=outcome.action(id),
                object_id=id,
                position=page.position_of(id),
                time_s=page.shown_s,
                received_s=now_s,
            )
            for page in pages
            for id in page.ids
            if id in judged
        ]
        about = {event.query_id for event in events}
        return [page for page in pages if page.query_id in about], events

    def _remembered(
        self, key: str, episode: str
    ) -> tuple[list[tuple[str, Impression]], list[tuple[str, str]]]:
        """Pages and readings of an episode as they are now: others may make it forgotten meanwhile."""
        with self._lock:
            task = self._episodes.get((key, episode))
            if task is not None and task.pages:
                return [*task.pages], [*task.readings]
        raise UnknownEpisode(
            f"episode={episode[:80]!r}; no search of it is remembered: name it in the searches "
            "of its task, and report soon after them"
        )

    def _grow(self, task: _Episode, more: int) -> None:
        task.bytes += more
        self._bytes += more
        while self._bytes > self._max_bytes and len(self._episodes) > 1:
            _, oldest = self._episodes.popitem(last=False)
            self._bytes -= oldest.bytes


def _digest(parts: list[str]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

"""Records of feedback: `Impression` and `Event`, their digests and their JSON form.

Names are those of Search UBI (User Behavior Insights, schema 1.3): `query_id, client_id, action_name,
object_id, event_attributes.position.ordinal, timestamp, user_query`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from dsearch.store.sqlite.digest import canonical_json

SHOWN = 100  # of a page, so many first hits are remembered


@dataclass(frozen=True, slots=True)
class Impression:
    """One page of hits as it was shown.

    Attributes:
        query_id: id of the impression.
        query: text of the query.
        shown_s: time of display, in seconds since 1970.
        generation: generation of the answer, −1 if only the query is known.
        model: model of the answer, "" if only the query is known.
        sequence: sequence of the answer, −1 if only the query is known.
        key: id of the API key that sent the query, else the client's; "" if neither is known.
        ids: ids of the documents shown, best first.
        weights: their attention weights.
        first: position of the first of them, counted from 1.
        pair: two positions that were swapped at random, or not; None without randomisation.
        swapped: True if the pair was swapped.
    """

    query_id: str
    query: str
    shown_s: float
    generation: int = -1
    model: str = ""
    sequence: int = -1
    key: str = ""
    ids: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    first: int = 1
    pair: tuple[int, int] | None = None
    swapped: bool = False

    def position_of(self, id: str) -> int | None:
        """Position of a document on the page, counted from 1; None if it is not recorded."""
        return self.first + self.ids.index(id) if id in self.ids else None

    def content(self) -> str:
        """Everything in it, as canonical JSON."""
        stamp = [self.generation, self.model, self.sequence]
        return canonical_json(
            [
                self.query_id,
                self.query,
                self.shown_s,
                stamp,
                self.key,
                self.ids,
                self.weights,
                self.first,
                self.pair,
                self.swapped,
            ]
        )

    @classmethod
    def from_content(cls, content: str) -> Impression:
        """The inverse of `content`; raises ValueError, TypeError or KeyError for anything else."""
        query_id, query, shown_s, stamp, key, ids, weights, first, pair, swapped = json.loads(content)
        generation, model, sequence = stamp
        return cls(
            query_id=query_id,
            query=query,
            shown_s=shown_s,
            generation=generation,
            model=model,
            sequence=sequence,
            key=key,
            ids=tuple(ids),
            weights=tuple(weights),
            first=first,
            pair=None if pair is None else (pair[0], pair[1]),
            swapped=swapped,
        )

    def to_dict(self) -> dict[str, Any]:
        """As exported."""
        return {
            "query_id": self.query_id,
            "user_query": self.query,
            "timestamp": _iso(self.shown_s),
            "generation": self.generation,
            "model": self.model,
            "sequence": self.sequence,
            "key": self.key,
            "query_response_hit_ids": list(self.ids),
            "weights": list(self.weights),
            "first_position": self.first,
            "randomised": None if self.pair is None else {"pair": list(self.pair), "swapped": self.swapped},
        }


@dataclass(frozen=True, slots=True)
class Event:
    """A user's action on a document that a query returned.

    Attributes:
        event_id: id of the event, unique for its key.
        query_id: id of the impression.
        key: id of the API key that sent the event, else the client's; "" if neither is known.
        client_id: the user's browser or session, as the sender names it; "" if unknown.
        action: name of the action, such as "click".
        object_id: id of the document.
        position: position of the document, counted from 1; None if unknown.
        time_s: time of the action, in seconds since 1970, as reported by the sender.
        received_s: time of receipt by this machine's clock.
    """

    event_id: str
    query_id: str
    key: str
    client_id: str
    action: str
    object_id: str
    position: int | None
    time_s: float
    received_s: float

    def content(self) -> str:
        """Everything but when it was received: an event that is sent again is the same event."""
        return canonical_json(
            [
                self.event_id,
                self.query_id,
                self.key,
                self.client_id,
                self.action,
                self.object_id,
                self.position,
                self.time_s,
            ]
        )

    @classmethod
    def from_content(cls, content: str, received_s: float) -> Event:
        """The inverse of `content`; raises ValueError or TypeError for anything else."""
        event_id, query_id, key, client_id, action, object_id, position, time_s = json.loads(content)
        return cls(event_id, query_id, key, client_id, action, object_id, position, time_s, received_s)

    def to_dict(self) -> dict[str, Any]:
        """As exported."""
        return {
            "event_id": self.event_id,
            "query_id": self.query_id,
            "client_id": self.client_id,
            "key": self.key,
            "action_name": self.action,
            "object_id": self.object_id,
            "event_attributes": {"position": {"ordinal": self.position}},
            "timestamp": _iso(self.time_s),
        }


def digest_of(content: str, received_s: float | None = None) -> bytes:
    """SHA-256 of a row's content and, for an event, its time of receipt; stored beside it."""
    return sha256(f"{content}{'' if received_s is None else float(received_s)!r}".encode()).digest()


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()

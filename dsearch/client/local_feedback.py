"""Feedback of a local engine: events about the words of a query; pages are remembered by servers alone."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dsearch.client.answers import Recorded
from dsearch.engine import Collection
from dsearch.errors import InvalidRequest
from dsearch.store import Event, FeedbackStore, Impression
from dsearch.training import ACTIONS

_NAMES = ("action_name", "object_id", "user_query", "client_id", "event_id", "timestamp")


def record_feedback(collection: Collection, events: Sequence[Mapping[str, Any]]) -> Recorded:
    """Write events, all or none; durable on return. Sent to a server, the same events have the same ids.

    Raises:
        InvalidRequest: no events, an unknown name or action, no words, no document, not a time.
        Conflict, FeedbackFull, InsufficientStorage, Unavailable, CorruptData.
    """
    if not events:
        raise InvalidRequest("no events; give one or more")
    now = time.time()
    made = [_made(number, event, collection.feedback, now) for number, event in enumerate(events)]
    pages = {page.query_id: page for page, _ in made}
    recorded = collection.feedback.record([*pages.values()], [event for _, event in made])
    return Recorded(recorded.events, recorded.repeated)


def _made(
    number: int, given: Mapping[str, Any], store: FeedbackStore, now: float
) -> tuple[Impression, Event]:
    if unknown := [str(name) for name in given if name not in _NAMES]:
        raise InvalidRequest(f"{number}: unknown field {unknown[0][:80]!r}; use {', '.join(_NAMES)}")
    if given.get("action_name") not in ACTIONS:
        raise InvalidRequest(f"{number}.action_name={given.get('action_name')!r}; use {', '.join(ACTIONS)}")
    for name in ("object_id", "user_query"):
        if not isinstance(given.get(name), str) or not given[name].strip():
            raise InvalidRequest(f"{number}.{name}={given.get(name)!r}; give text")
    words, action, document = given["user_query"], given["action_name"], given["object_id"]
    client, moment = given.get("client_id", ""), given.get("timestamp")
    query_id = "text-" + _digest([words])
    key = f"client:{client}" if client else ""
    page = store.impression(query_id) or Impression(query_id, words, now, key=key)
    event_id = given.get("event_id") or _digest([query_id, client, action, document, moment])
    event = Event(
        event_id=event_id,
        query_id=query_id,
        key=key,
        client_id=client,
        action=action,
        object_id=document,
        position=None,
        time_s=page.shown_s if moment is None else _seconds(number, moment),
        received_s=now,
    )
    return page, event


def _seconds(number: int, moment: Any) -> float:
    try:
        given = datetime.fromisoformat(moment)
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"{number}.timestamp={moment!r}; use a time such as 2026-01-31T12:00:00Z"
        ) from None
    return (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()


def _digest(parts: list[str | None]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

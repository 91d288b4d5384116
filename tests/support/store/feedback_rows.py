"""A page that was shown, and clicks on it."""

from __future__ import annotations

from dsearch.store import Event, Impression

PAGE = Impression("q1", "wing flutter", 100.5, 3, "v2", 17, "site", ("a", "b"), (0.7, 0.3), 1, (1, 2), True)


def click(name: str = "e1", query_id: str = "q1", **more: object) -> Event:
    fields = {"key": "site", "client_id": "browser", "action": "click", "object_id": "b", "position": 2}
    times = {"time_s": 100.0, "received_s": 101.25}
    return Event(name, query_id, **{**fields, **times, **more})  # type: ignore[arg-type]

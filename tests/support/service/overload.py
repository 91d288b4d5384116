"""A service filled with requests that wait."""

from __future__ import annotations

from typing import Any

from dsearch.service.admission import (
    Admission,
    AdmittedRequest,
    EventLoopLag,
)

SEARCH = "/v1/collections/papers/search"


async def nothing(*_: Any) -> Any:
    return {"type": "http.disconnect"}


def fill(door: Admission, path: str = SEARCH) -> list[AdmittedRequest]:
    """Requests that are let in until one is refused for want of room.

    A late event loop, of a busy machine, refuses some of them too: then there would still be room.
    """
    door._lag = EventLoopLag()  # it measures nothing, so that room alone decides
    places: list[AdmittedRequest] = []
    while not door.refuses(path):
        places.append(door.let_in(path, nothing))
        places[-1].take()
    return places

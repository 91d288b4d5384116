"""A service filled with requests that wait."""

from __future__ import annotations

from typing import Any

from dsearch.service.overload.admission import (
    Admission,
    AdmittedRequest,
)

SEARCH = "/v1/collections/papers/search"


async def nothing(*_: Any) -> Any:
    return {"type": "http.disconnect"}


def fill(door: Admission, path: str = SEARCH) -> list[AdmittedRequest]:
    """Requests that are let in until one is refused."""
    places: list[AdmittedRequest] = []
    while not door.refuses(path):
        places.append(door.let_in(path, nothing))
        places[-1].take()
    return places

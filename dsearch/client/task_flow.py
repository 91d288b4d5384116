"""What every call does that has something long done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsearch.client import reading
from dsearch.client.answers import Task
from dsearch.client.asking import path_of, question
from dsearch.client.flow import Flow, Request


def begun(collection: str, route: str, asked: Mapping[str, Any] | None = None) -> Flow[Task]:
    """The task that a POST begins; sent once, for a second one would begin another.

    Args:
        collection: its name.
        route: below the collection.
        asked: the body, of which what is None is left out; None: there is no body.
    """
    posted = Request("POST", path_of(collection, route))
    if asked is not None:
        posted = question(collection, route, asked)
    answer = yield replace(posted, repeatable=False, writes=True)
    return reading.made(Task, reading.content_of(answer))

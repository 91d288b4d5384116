"""Feedback: clicks and judgements of users on search results."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from dsearch.errors import CollectionNotFound, Conflict, CorruptData, InsufficientStorage, InvalidRequest
from dsearch.results import Recorded
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnknownQuery, UnsupportedMediaType
from dsearch.service.feedback import Feedback, asker
from dsearch.service.middleware.strict_route import StrictRoute
from dsearch.service.schemas.feedback import Events
from dsearch.service.state import TheService
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.store import FeedbackFull

router = APIRouter(prefix="/v1/collections/{collection}", tags=["feedback"], route_class=StrictRoute)


@router.post(
    "/feedback",
    response_model=Recorded,
    responses=documented(
        CollectionNotFound, UnknownQuery, InvalidRequest, InvalidJson, Conflict, CorruptData, BodyTooLarge
    )
    | documented(UnsupportedMediaType, Overloaded, FeedbackFull, InsufficientStorage),
)
async def feedback(collection: str, events: Events, request: Request, service: TheService) -> Response:
    """Record clicks and judgements, all of them or none. Training learns from them.

    The page that an event is about is stored with it: the query, what was shown where. Pages that nobody
    reacts to are not stored.
    """
    work = Feedback(service.catalogue, service.impressions, collection, asker(request), events)
    recorded = await service.feedback.run(work, characters=sum(len(one.object_id) for one in events))
    return json_answer(recorded)

"""Feedback: clicks and judgements of users on search results."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from dsearch.engine.episodes import TaskOutcome, UnknownEpisode
from dsearch.errors import CollectionNotFound, Conflict, CorruptData, InsufficientStorage, InvalidRequest
from dsearch.results import Recorded
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnknownQuery, UnsupportedMediaType
from dsearch.service.feedback import Feedback, asker, record_outcome
from dsearch.service.middleware.strict_route import StrictRoute
from dsearch.service.schemas.feedback import Events, OutcomeRequest
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


@router.post(
    "/outcomes",
    response_model=Recorded,
    responses=documented(
        CollectionNotFound, UnknownEpisode, InvalidRequest, InvalidJson, Conflict, CorruptData, BodyTooLarge
    )
    | documented(UnsupportedMediaType, Overloaded, FeedbackFull, InsufficientStorage),
)
async def outcome(collection: str, end: OutcomeRequest, request: Request, service: TheService) -> Response:
    """Record how a task ended: a grade for what was read in its searches here. Training learns from it.

    Sent again, the same outcome counts once; another outcome of the same episode is refused.
    """
    work = partial(
        record_outcome,
        service.catalogue,
        service.episodes,
        collection,
        asker(request),
        end.episode,
        TaskOutcome(end.useful_ids, end.success),
        end.client_id,
    )
    return json_answer(await service.feedback.run(work))

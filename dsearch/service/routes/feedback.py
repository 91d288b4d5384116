"""Feedback: clicks and judgements of users on search results."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from dsearch.engine.feedback import TaskOutcome, UnknownEpisode
from dsearch.errors import (
    CollectionNotFound,
    Conflict,
    CorruptData,
    InsufficientStorage,
    InvalidRequest,
    ModelNotFound,
)
from dsearch.operations import FindQueriesToJudge, ReadOwnJudgements, RecordFeedback, ReportOutcome
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnknownQuery, UnsupportedMediaType
from dsearch.service.feedback import Feedback, asker, record_outcome
from dsearch.service.schemas.feedback import Events, Name, OutcomeRequest
from dsearch.service.schemas.search import Version
from dsearch.service.state import TheService
from dsearch.service.wire.declared_routes import answers
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import RequestModel, StrictRoute, allowed
from dsearch.store import FeedbackFull
from dsearch.types import CLIENT, OwnJudgements, QueriesToJudge

router = APIRouter(prefix="/v1/collections/{collection}", tags=["feedback"], route_class=StrictRoute)


@answers(
    router,
    RecordFeedback,
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
    recorded = await service.feedback.run(work, characters=sum(len(event.object_id) for event in events))
    return json_answer(recorded)


class JudgementsParameters(RequestModel):
    """Person whose opinions are read."""

    client_id: Name | None = Field(
        None,
        description="client_id that the opinions were sent with; with a key, its own count",
        examples=["browser-17"],
    )


class SuggestionsParameters(JudgementsParameters):
    """Versions to compare, and the number of queries."""

    version: Version | None = Field(
        None, description="version to compare with the live one; the latest other one if not given"
    )
    limit: Annotated[int, Field(ge=1, le=100), allowed("an integer from 1 to 100")] = Field(
        10, description="number of queries"
    )


@answers(router, ReadOwnJudgements, responses=documented(CollectionNotFound, InvalidRequest, CorruptData))
async def own_judgements(
    collection: str,
    request: Request,
    service: TheService,
    parameters: Annotated[JudgementsParameters, Query()],
) -> Response:
    """Return the caller's opinions (thumbs) as judgements, as `POST …/train` takes them.

    `missing` is the number of further judged queries until a training can be told from chance.
    """
    key = _person(request, parameters.client_id)

    def read() -> OwnJudgements:
        from dsearch.training import judging  # a server that only searches does not load training

        with service.catalogue.whole(collection) as opened:
            return judging.own_judgements(opened, key)

    return json_answer(await service.read(read))


@answers(
    router,
    FindQueriesToJudge,
    responses=documented(CollectionNotFound, ModelNotFound, InvalidRequest, CorruptData),
)
async def next_to_judge(
    collection: str,
    request: Request,
    service: TheService,
    parameters: Annotated[SuggestionsParameters, Query()],
) -> Response:
    """Return queries on which the live version and another one differ most: their judgements tell most."""
    key = _person(request, parameters.client_id)

    def read() -> QueriesToJudge:
        from dsearch.training import judging

        with service.catalogue.whole(collection, encoder=True) as opened:
            own = judging.own_judgements(opened, key)
            return judging.queries_to_judge(
                opened, version=parameters.version, judged=list(own.queries.values()), limit=parameters.limit
            )

    return json_answer(await service.read(read))


def _person(request: Request, client_id: str | None) -> str | None:
    """Return the person: by key where keys are needed, else by client; None is everybody."""
    return asker(request) or (CLIENT + client_id if client_id else None)


@answers(
    router,
    ReportOutcome,
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

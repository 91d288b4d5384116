"""Draft heads: handed in to be asked by `attend` and `vjp` for a while; draws, and their rewards."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from dsearch.engine import calls
from dsearch.errors import (
    CollectionNotFound,
    Conflict,
    DimensionMismatch,
    EncoderMismatch,
    EncoderUnavailable,
    Gone,
    InvalidRequest,
    ModelNotFound,
)
from dsearch.results import DraftAdded
from dsearch.service.batching.attend import draw as draw_of
from dsearch.service.batching.attend import reward as reward_of
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.feedback import asker
from dsearch.service.routes.models import AddParameters, head_body
from dsearch.service.schemas.answers import DrawAnswer, RewardAnswer
from dsearch.service.schemas.attend import DrawRequest, DrawRewards
from dsearch.service.state import TheService
from dsearch.service.wire.json import (
    TENSOR_ANSWER,
    TENSORS,
    json_answer,
    json_tensors,
    stamped,
    tensors_answer,
    wants_tensors,
)
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import StrictRoute

router = APIRouter(prefix="/v1/collections/{collection}", tags=["attention"], route_class=StrictRoute)
_BODY: dict[str, Any] = {TENSORS: {"schema": {"type": "string", "format": "binary"}}}
_DRAWING = documented(
    CollectionNotFound,
    ModelNotFound,
    EncoderMismatch,
    EncoderUnavailable,
    Conflict,
    Gone,
    InvalidRequest,
    DimensionMismatch,
    InvalidJson,
    Overloaded,
) | documented(BodyTooLarge, UnsupportedMediaType)


@router.post(
    "/heads",
    status_code=201,
    response_model=DraftAdded,
    openapi_extra={"requestBody": {"required": True, "content": _BODY}},
    responses=documented(CollectionNotFound, ModelNotFound, InvalidRequest, DimensionMismatch, Conflict)
    | documented(BodyTooLarge, UnsupportedMediaType, Overloaded),
)
async def add_draft(
    collection: str, request: Request, service: TheService, parameters: Annotated[AddParameters, Query()]
) -> Response:
    """Hand a head in for a while: `attend` and `vjp` answer by it where they name it as `draft`.

    The body is what `GET …/models/{version}/head` gives, with other numbers. Nothing is stored. A draft
    answers who handed it in, until ten minutes after its last use; of eight the oldest makes room.
    """
    body = await head_body(collection, request, service)

    def add() -> DraftAdded:
        with service.catalogue.whole(collection) as opened:
            return calls.add_draft(opened, body, parameters.parent, asker(request))

    return json_answer(await service.read(add), 201)


@router.delete("/heads/{draft}", status_code=204, responses=documented(CollectionNotFound, InvalidRequest))
async def drop_draft(collection: str, draft: str, request: Request, service: TheService) -> Response:
    """Forget a draft head; one that is gone already is no error."""

    def drop() -> None:
        with service.catalogue.whole(collection) as opened:
            calls.drop_draft(opened, draft, asker(request))

    await service.read(drop)
    return Response(status_code=204)


@router.get(
    "/heads/{draft}",
    response_class=Response,
    responses={200: {"content": _BODY, "description": "its tensors"}}
    | documented(CollectionNotFound, InvalidRequest, Gone),
)
async def get_draft(collection: str, draft: str, request: Request, service: TheService) -> Response:
    """Return the tensors of a draft head: to go on with, or to make a version by `POST …/models`."""

    def read() -> bytes:
        with service.catalogue.whole(collection) as opened:
            return calls.draft_bytes(opened, draft, asker(request))

    return Response(await service.read(read), media_type=TENSORS)


@router.post("/draws", response_model=DrawAnswer, responses=_DRAWING)
async def draw_documents(
    collection: str, body: DrawRequest, request: Request, service: TheService
) -> Response:
    """Draw documents with the probability of their weights: hard attention, to be rewarded.

    Each draw waits ten minutes for `POST …/draws/{draw}/rewards`; of 64 the oldest makes room.
    """
    started = time.perf_counter()
    work = partial(draw_of, service.catalogue, collection, body, asker(request))
    result = await service.searching.run(work, characters=body.characters)
    content = stamped(result.stamp) | {
        "draw": result.draw,
        "results": result.results,
        "expires_s": result.expires_s,
        "draft": result.draft,
    }
    return json_answer(content | {"took_ms": _ms_since(started)})


@router.post("/draws/{draw}/rewards", response_model=RewardAnswer, responses=TENSOR_ANSWER | _DRAWING)
async def reward_draw(
    collection: str, draw: str, body: DrawRewards, request: Request, service: TheService
) -> Response:
    """Reward the documents of a draw, once; the head learns, or gradients come back (REINFORCE).

    With `learning_rate` the head takes a step and is the draft head `draft` from then on: draw again with it.
    """
    started = time.perf_counter()
    work = partial(reward_of, service.catalogue, collection, draw, body, asker(request))
    result = await service.searching.run(work)
    content = stamped(result.stamp) | {"mean_reward": result.mean_reward, "draft": result.draft}
    content["took_ms"] = _ms_since(started)
    states, head = dict[str, np.ndarray](), dict[str, np.ndarray]()
    if result.states is not None and "states" in body.include:
        states = {"states": np.ascontiguousarray(result.states)}
    if result.head is not None and "head" in body.include:
        head = result.head
    if wants_tensors(request):
        return tensors_answer(states | {f"head.{name}": tensor for name, tensor in head.items()}, content)
    return json_answer(content | states | ({"head": json_tensors(head)} if head else {}))


def _ms_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)

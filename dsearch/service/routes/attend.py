"""Attention and its gradients: search as a function that others can differentiate."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from fastapi import APIRouter, Request, Response

from dsearch.errors import (
    AnswerTooLarge,
    CollectionNotFound,
    Conflict,
    DimensionMismatch,
    EncoderMismatch,
    EncoderUnavailable,
    Gone,
    InvalidRequest,
    ModelNotFound,
)
from dsearch.operations import Attend, Differentiate
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.feedback import asker
from dsearch.service.schemas.answers import AttendAnswer, VjpAnswer
from dsearch.service.schemas.attend import AttendRequest, VjpRequest
from dsearch.service.searching import (
    MAX_JSON_VECTOR_BYTES,
    MAX_TENSOR_BYTES,
    attended_arrays,
    attended_facts,
    attended_json,
)
from dsearch.service.searching import attend as attention_of
from dsearch.service.searching import vjp as gradients_of
from dsearch.service.state import TheService
from dsearch.service.wire.declared_routes import answers
from dsearch.service.wire.json import (
    TENSOR_ANSWER,
    json_answer,
    json_tensors,
    stamped,
    tensors_answer,
    wants_tensors,
)
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import StrictRoute

router = APIRouter(prefix="/v1/collections/{collection}", tags=["attention"], route_class=StrictRoute)
_PROBLEMS = documented(
    CollectionNotFound,
    ModelNotFound,
    EncoderMismatch,
    Conflict,
    Gone,
    InvalidRequest,
    DimensionMismatch,
    InvalidJson,
    Overloaded,
    EncoderUnavailable,
) | documented(BodyTooLarge, UnsupportedMediaType)


_REFUSED = documented(InvalidRequest, DimensionMismatch, AnswerTooLarge)


@answers(router, Attend, response_model=AttendAnswer, responses=TENSOR_ANSWER | _PROBLEMS | _REFUSED)
async def attend(collection: str, body: AttendRequest, request: Request, service: TheService) -> Response:
    """Compute attention for texts or query states: context, weights, scores and ids.

    With `Accept: application/x-safetensors` the numbers come as tensors, and the rest as JSON in `answer` of
    the header's `__metadata__`.
    """
    started = time.perf_counter()
    tensors = wants_tensors(request)
    largest = MAX_TENSOR_BYTES if tensors else MAX_JSON_VECTOR_BYTES
    work = partial(attention_of, service.catalogue, collection, body, asker(request), largest)
    parts = await service.searching.run(work, characters=body.characters)
    took = {"took_ms": _ms_since(started)}
    if tensors:
        return tensors_answer(attended_arrays(parts), attended_facts(parts) | took)
    return json_answer(attended_json(parts) | took)


@answers(router, Differentiate, response_model=VjpAnswer, responses=TENSOR_ANSWER | _PROBLEMS)
async def vjp(collection: str, body: VjpRequest, request: Request, service: TheService) -> Response:
    """Differentiate an answer of `attend`: repeat its request, with its stamp and your loss's gradient.

    The server keeps nothing between the two. A state that was replaced since is `gone` (410): attend again.
    """
    started = time.perf_counter()
    work = partial(gradients_of, service.catalogue, collection, body, asker(request))
    gradients = await service.searching.run(work, characters=body.characters)
    facts = stamped(gradients.stamp) | {"took_ms": _ms_since(started)}
    states = {"states": np.ascontiguousarray(gradients.states)} if "states" in body.include else {}
    for name, gradient in (("bias", gradients.bias), ("table", gradients.table)):
        if gradient is not None and name in body.include:
            states[name] = np.ascontiguousarray(gradient)
    head = gradients.head if "head" in body.include else {}
    if wants_tensors(request):
        return tensors_answer(states | {f"head.{name}": tensor for name, tensor in head.items()}, facts)
    return json_answer(facts | states | ({"head": json_tensors(head)} if head else {}))


def _ms_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)

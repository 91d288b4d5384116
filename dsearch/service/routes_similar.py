"""More like these documents."""

from __future__ import annotations

import time
from functools import partial

from fastapi import APIRouter, Response

from dsearch.errors import (
    CollectionNotFound,
    Conflict,
    DocumentNotFound,
    EncoderMismatch,
    EncoderUnavailable,
    Gone,
    InvalidCursor,
    InvalidRequest,
    ModelNotFound,
)
from dsearch.service.answers import SearchAnswer
from dsearch.service.catalogue import Catalogue
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.found import search_answer
from dsearch.service.problems import documented
from dsearch.service.requests_find import SimilarRequest
from dsearch.service.respond import json_answer
from dsearch.service.searching import engine_options
from dsearch.service.service import TheService
from dsearch.service.strict_route import StrictRoute
from dsearch.types import SearchResult

router = APIRouter(prefix="/v1/collections/{collection}", tags=["search"], route_class=StrictRoute)


@router.post(
    "/similar",
    response_model=SearchAnswer,
    responses=documented(CollectionNotFound, DocumentNotFound, ModelNotFound, EncoderMismatch, Conflict)
    | documented(InvalidRequest, InvalidCursor, InvalidJson, Gone)
    | documented(BodyTooLarge, UnsupportedMediaType, Overloaded, EncoderUnavailable),
)
async def similar(collection: str, asked: SimilarRequest, service: TheService) -> Response:
    """The documents most like some and least like others, which are left out (Rocchio's query)."""
    started = time.perf_counter()
    characters = 0 if asked.query is None else len(asked.query)
    find = partial(_similar, service.catalogue, collection, asked)
    result = await service.searching.run(find, characters=characters)
    service.metrics.searched(collection, [result])
    return json_answer(search_answer(result, round((time.perf_counter() - started) * 1000, 3)))


def _similar(catalogue: Catalogue, name: str, asked: SimilarRequest) -> SearchResult:
    with catalogue.using(name, encoder=asked.query is not None) as collection:
        return collection.similar(asked.like, unlike=asked.unlike, query=asked.query, **engine_options(asked))

"""Search, search by example, and predictions of metadata fields."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from dsearch.engine.feedback import impression_of
from dsearch.engine.search.similar import similar as find_similar
from dsearch.errors import (
    CollectionNotFound,
    Conflict,
    DimensionMismatch,
    DocumentNotFound,
    EncoderMismatch,
    EncoderUnavailable,
    Gone,
    InvalidCursor,
    InvalidRequest,
    ModelNotFound,
)
from dsearch.operations import FindSimilar, Predict, Search, SearchBatch
from dsearch.service.collections import Catalogue
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.feedback import asker
from dsearch.service.schemas.answers import BatchAnswer, PredictAnswer, SearchAnswer, search_answer
from dsearch.service.schemas.documents import SimilarRequest
from dsearch.service.schemas.search import (
    BatchRequest,
    PredictRequest,
    SearchFields,
    SearchParameters,
    SearchRequest,
)
from dsearch.service.searching import Searches, by_vectors
from dsearch.service.searching import predict as prediction_of
from dsearch.service.state import Service, TheService
from dsearch.service.wire.declared_routes import answers
from dsearch.service.wire.json import json_answer, new_id
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import StrictRoute
from dsearch.store import Impression
from dsearch.types import SearchResult

router = APIRouter(prefix="/v1/collections/{collection}", tags=["search"], route_class=StrictRoute)
_READS = documented(
    CollectionNotFound, ModelNotFound, EncoderMismatch, InvalidRequest, Overloaded, EncoderUnavailable
)
_BODIES = documented(BodyTooLarge, UnsupportedMediaType)
_QUESTIONS = (
    documented(
        CollectionNotFound,
        ModelNotFound,
        EncoderMismatch,
        InvalidRequest,
        InvalidJson,
        Overloaded,
        EncoderUnavailable,
    )
    | _BODIES
)
_VECTORS = documented(InvalidRequest, DimensionMismatch)


@answers(router, Search, response_model=SearchAnswer, responses=_QUESTIONS | _VECTORS)
async def search(collection: str, body: SearchRequest, request: Request, service: TheService) -> Response:
    """Search for the documents that a query attends to most."""
    if body.vector is None:
        return await _search(collection, body.query or "", body, asker(request), service)
    started = time.perf_counter()
    find = partial(by_vectors, service.catalogue, collection, [body.query or ""], [body.vector])
    (result,) = await service.searching.run(partial(find, body.options()), characters=len(body.query or ""))
    service.metrics.searched(collection, [result])
    took_ms = _ms_since(started)
    return json_answer(await _answer_of(collection, result, took_ms, body, asker(request), service))


@router.get("/search", response_model=SearchAnswer, responses=_READS)
async def search_by_url(
    collection: str, parameters: Annotated[SearchParameters, Query()], request: Request, service: TheService
) -> Response:
    """Search with a query in the URL."""
    return await _search(collection, parameters.query, parameters, asker(request), service)


@answers(router, SearchBatch, response_model=BatchAnswer, responses=_QUESTIONS | _VECTORS)
async def search_batch(
    collection: str, body: BatchRequest, request: Request, service: TheService
) -> Response:
    """Search with many queries in one state."""
    started = time.perf_counter()
    texts, characters = body.texts, sum(map(len, body.texts))
    if body.vectors is None:
        find = partial(Searches(service.catalogue, collection, body.options()), texts)
    else:
        find = partial(by_vectors, service.catalogue, collection, texts, body.vectors, body.options())
    results = await service.searching.run(find, characters=characters)
    service.metrics.searched(collection, results)
    took_ms = _ms_since(started)
    key = asker(request)
    answers = [await _answer_of(collection, result, took_ms, body, key, service) for result in results]
    return json_answer({"took_ms": took_ms, "results": answers})


@answers(
    router,
    Predict,
    response_model=PredictAnswer,
    responses=_QUESTIONS | documented(InvalidRequest, DimensionMismatch),
)
async def predict(collection: str, body: PredictRequest, service: TheService) -> Response:
    """Predict a field of the documents, pooled by attention: mean and spread, or shares of labels."""
    started = time.perf_counter()
    work = partial(prediction_of, service.catalogue, collection, body)
    answer = await service.searching.run(work, characters=body.characters)
    return json_answer(answer | {"took_ms": _ms_since(started)})


async def _search(collection: str, query: str, options: SearchFields, key: str, service: Service) -> Response:
    started = time.perf_counter()
    searches = Searches(service.catalogue, collection, options.options())
    result = await service.searching.submit(searches, query, characters=len(query))
    service.metrics.searched(collection, [result])
    return json_answer(await _answer_of(collection, result, _ms_since(started), options, key, service))


async def _answer_of(
    collection: str, result: SearchResult, took_ms: float, options: SearchFields, key: str, service: Service
) -> dict[str, Any]:
    """The answer, remembered for the feedback that may come; without words there is none to learn from."""
    if not result.query:
        return search_answer(result, took_ms)
    explore = 0.0 if options.sort is not None else options.explore  # an order that was asked for stays
    page, query_id, drawn = service.impressions.show(collection, result, key=key, explore=explore)
    if seen := service.impressions.find(collection, query_id):
        await _join(collection, seen, options, key, service)
    return search_answer(page, took_ms, query_id, drawn)


async def _join(collection: str, page: Impression, options: SearchFields, key: str, service: Service) -> None:
    """Join a page to the task that its search named, by the collection's own name."""
    if options.episode is not None:
        name = await service.read(partial(service.catalogue.own_name, collection))
        service.episodes.add_page(key, options.episode, name, page)


def _ms_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)


@answers(
    router,
    FindSimilar,
    response_model=SearchAnswer,
    responses=documented(CollectionNotFound, DocumentNotFound, ModelNotFound, EncoderMismatch, Conflict)
    | documented(InvalidRequest, DimensionMismatch, InvalidCursor, InvalidJson, Gone)
    | documented(BodyTooLarge, UnsupportedMediaType, Overloaded, EncoderUnavailable),
)
async def similar(collection: str, body: SimilarRequest, request: Request, service: TheService) -> Response:
    """Search by example: documents like some and unlike others, without these (Rocchio's query)."""
    started = time.perf_counter()
    characters = 0 if body.query is None else len(body.query)
    find = partial(_similar, service.catalogue, collection, body)
    result = await service.searching.run(find, characters=characters)
    service.metrics.searched(collection, [result])
    took_ms = _ms_since(started)
    if result.query:  # without words there is nothing to learn from
        key = asker(request)
        await _join(collection, impression_of(result, new_id(), key=key), body, key, service)
    return json_answer(search_answer(result, took_ms))


def _similar(catalogue: Catalogue, name: str, body: SimilarRequest) -> SearchResult:
    encoder = body.query is not None and body.vector is None
    with catalogue.whole(name, encoder=encoder) as collection:
        return find_similar(
            collection,
            body.like,
            unlike=body.unlike,
            query=body.query,
            vector=body.vector,
            chosen=body.options(),
        )

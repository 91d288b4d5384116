"""Search, and what the documents found say of a field."""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from dsearch.errors import (
    CollectionNotFound,
    DimensionMismatch,
    EncoderMismatch,
    EncoderUnavailable,
    InvalidRequest,
    ModelNotFound,
)
from dsearch.service.answers import BatchAnswer, PredictAnswer, SearchAnswer
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.problems import documented
from dsearch.service.requests import (
    BatchRequest,
    PredictRequest,
    SearchOptions,
    SearchParameters,
    SearchRequest,
)
from dsearch.service.respond import json_answer
from dsearch.service.searching import Searches
from dsearch.service.searching import predict as prediction_of
from dsearch.service.service import Service, TheService
from dsearch.service.strict_route import StrictRoute
from dsearch.types import Hit, SearchResult

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


@router.post("/search", response_model=SearchAnswer, responses=_QUESTIONS)
async def search(collection: str, asked: SearchRequest, service: TheService) -> Response:
    """The documents that a query attends to most."""
    return await _search(collection, asked.query, asked, service)


@router.get("/search", response_model=SearchAnswer, responses=_READS)
async def search_by_url(
    collection: str, asked: Annotated[SearchParameters, Query()], service: TheService
) -> Response:
    """The same, for a query in the URL."""
    return await _search(collection, asked.query, asked, service)


@router.post("/search/batch", response_model=BatchAnswer, responses=_QUESTIONS)
async def search_batch(collection: str, asked: BatchRequest, service: TheService) -> Response:
    """Many queries, answered from one state."""
    started = time.perf_counter()
    searches = _searches(collection, asked, service)
    characters = sum(map(len, asked.queries))
    results = await service.searching.run(partial(searches, asked.queries), characters=characters)
    service.metrics.searched(collection, results)
    took_ms = _ms_since(started)
    return json_answer({"took_ms": took_ms, "results": [_answer(result, took_ms) for result in results]})


@router.post(
    "/predict",
    response_model=PredictAnswer,
    responses=_QUESTIONS | documented(InvalidRequest, DimensionMismatch),
)
async def predict(collection: str, asked: PredictRequest, service: TheService) -> Response:
    """A field of the documents pooled by attention: mean and spread, or a distribution over labels."""
    started = time.perf_counter()
    answer = await service.searching.run(partial(prediction_of, service.catalogue, collection, asked))
    return json_answer(answer | {"took_ms": _ms_since(started)})


async def _search(collection: str, query: str, options: SearchOptions, service: Service) -> Response:
    started = time.perf_counter()
    searches = _searches(collection, options, service)
    result = await service.searching.submit(searches, query, characters=len(query))
    service.metrics.searched(collection, [result])
    return json_answer(_answer(result, _ms_since(started)))


def _searches(collection: str, options: SearchOptions, service: Service) -> Searches:
    return Searches(
        service.catalogue,
        collection,
        limit=options.limit,
        offset=options.offset,
        mode=options.mode,
        model=options.model,
        explain=options.explain,
        hops=options.hops,
        hop_strength=options.hop_strength,
    )


def _answer(result: SearchResult, took_ms: float) -> dict[str, Any]:
    return {
        "query_id": uuid.uuid4().hex,
        "generation": result.stamp.generation,
        "model": result.stamp.model,
        "sequence": result.stamp.sequence,
        "took_ms": took_ms,
        "hits": [_hit(hit) for hit in result.hits],
        "attention": {
            "candidates": result.attention.candidates,
            "entropy": result.attention.entropy,
            "covered_mass": result.attention.covered_mass,
        },
    }


def _hit(hit: Hit) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "rank": hit.rank,
        "id": hit.id,
        "weight": hit.weight,
        "score": hit.score,
        "title": hit.title,
        "text": hit.text,
        "metadata": hit.metadata,
    }
    if hit.explain is not None:
        shown["explain"] = {
            "dense": hit.explain.dense,
            "keyword": hit.explain.keyword,
            "head_weights": hit.explain.head_weights,
        }
    return shown


def _ms_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)

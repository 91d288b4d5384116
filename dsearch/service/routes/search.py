"""Calls that search and attend, and what people make of what was found."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Response

from dsearch.engine.feedback import TaskOutcome, UnknownEpisode, impression_of
from dsearch.engine.search.similar import similar as find_similar
from dsearch.errors import (
    AnswerTooLarge,
    Conflict,
    CorruptData,
    DimensionMismatch,
    DocumentNotFound,
    EncoderMismatch,
    EncoderUnavailable,
    Gone,
    InsufficientStorage,
    InvalidCursor,
    InvalidRequest,
    ModelNotFound,
    amount,
)
from dsearch.operations import (
    Attend,
    Differentiate,
    FindQueriesToJudge,
    FindSimilar,
    Predict,
    ReadOwnJudgements,
    RecordFeedback,
    ReportOutcome,
    Search,
    SearchBatch,
)
from dsearch.search_options import SearchOptions
from dsearch.service.errors import Overloaded, UnknownQuery
from dsearch.service.feedback import Feedback, record_outcome
from dsearch.service.routes.served import Asked, serves
from dsearch.service.schemas.answers import (
    AttendAnswer,
    BatchAnswer,
    PredictAnswer,
    SearchAnswer,
    VjpAnswer,
    search_answer,
)
from dsearch.service.schemas.feedback import Events
from dsearch.service.searching import (
    MAX_JSON_VECTOR_BYTES,
    MAX_TENSOR_BYTES,
    Searches,
    attended_arrays,
    attended_facts,
    attended_json,
    by_vectors,
)
from dsearch.service.searching import attend as attention_of
from dsearch.service.searching import predict as prediction_of
from dsearch.service.searching import vjp as gradients_of
from dsearch.service.wire.json import (
    TENSOR_ANSWER,
    json_answer,
    json_tensors,
    new_id,
    stamped,
    tensors_answer,
    wants_tensors,
)
from dsearch.service.wire.requests import StrictRoute
from dsearch.store import FeedbackFull, Impression, filter_of
from dsearch.types import CLIENT, OwnJudgements, QueriesToJudge, SearchResult

PATH = "/v1/collections/{collection}"
router = APIRouter(prefix=PATH, tags=["search"], route_class=StrictRoute)
attention = APIRouter(prefix=PATH, tags=["attention"], route_class=StrictRoute)
feedback = APIRouter(prefix=PATH, tags=["feedback"], route_class=StrictRoute)
MAX_BATCH_HITS = 25_600
_READS = (ModelNotFound, EncoderMismatch, Overloaded, EncoderUnavailable)
_OF_VECTORS = (*_READS, DimensionMismatch)

# ---- search


@serves(router, Search, *_READS, in_url=True, response_model=SearchAnswer)
@serves(router, Search, *_OF_VECTORS, response_model=SearchAnswer)
async def search(asked: Asked, call: Search) -> Response:
    started = time.perf_counter()
    service, query = asked.service, call.query or ""
    if call.vector is None:
        searches = Searches(service.catalogue, call.collection, options_of(call))
        result = await service.searching.submit(searches, query, characters=len(query))
    else:
        find = partial(by_vectors, service.catalogue, call.collection, [query], [call.vector])
        (result,) = await service.searching.run(partial(find, options_of(call)), characters=len(query))
    service.metrics.searched(call.collection, [result])
    return json_answer(await _answer_of(asked, call, result, _ms_since(started)))


@serves(router, SearchBatch, *_OF_VECTORS, response_model=BatchAnswer)
async def search_batch(asked: Asked, call: SearchBatch) -> Response:
    started = time.perf_counter()
    service, texts, options = asked.service, call.texts, options_of(call)
    hits = len(texts) * (options.limit + options.offset)
    if hits > MAX_BATCH_HITS:
        raise InvalidRequest(
            f"{amount(hits, 'hit')} of {amount(len(texts), 'query')} with limit + offset "
            f"{options.limit + options.offset}; use at most {MAX_BATCH_HITS} in one request"
        )
    if call.vectors is None:
        find = partial(Searches(service.catalogue, call.collection, options), texts)
    else:
        find = partial(by_vectors, service.catalogue, call.collection, texts, call.vectors, options)
    results = await service.searching.run(find, characters=sum(map(len, texts)))
    service.metrics.searched(call.collection, results)
    took_ms = _ms_since(started)
    answers = [await _answer_of(asked, call, result, took_ms) for result in results]
    return json_answer({"took_ms": took_ms, "results": answers})


@serves(
    router,
    FindSimilar,
    *_OF_VECTORS,
    DocumentNotFound,
    Conflict,
    InvalidCursor,
    Gone,
    response_model=SearchAnswer,
)
async def similar(asked: Asked, call: FindSimilar) -> Response:
    started = time.perf_counter()
    service = asked.service

    def find() -> SearchResult:
        encoder = call.query is not None and call.vector is None
        with service.catalogue.whole(call.collection, encoder=encoder) as collection:
            return find_similar(
                collection,
                call.like,
                unlike=call.unlike,
                query=call.query,
                vector=call.vector,
                chosen=options_of(call),
            )

    result = await service.searching.run(find, characters=len(call.query or ""))
    service.metrics.searched(call.collection, [result])
    took_ms = _ms_since(started)
    if result.query:  # without words there is nothing to learn from
        await _join(asked, call, impression_of(result, new_id(), key=asked.key))
    return json_answer(search_answer(result, took_ms))


@serves(router, Predict, *_OF_VECTORS, response_model=PredictAnswer)
async def predict(asked: Asked, call: Predict) -> Response:
    """The prediction is a mean with its spread, or shares of labels."""
    started = time.perf_counter()
    work = partial(prediction_of, asked.service.catalogue, call)
    answer = await asked.service.searching.run(work, characters=_characters(call))
    return json_answer(answer | {"took_ms": _ms_since(started)})


Found = Search | SearchBatch | FindSimilar


def options_of(call: Found) -> SearchOptions:
    """Return the options as the engine takes them.

    Raises:
        InvalidRequest: not a filter.
    """
    options = dict(call.options)
    options.pop("explore", None)
    options.pop("episode", None)
    if "filter" in options:
        options["filter"] = filter_of(options["filter"])
    return SearchOptions(**options)


async def _answer_of(asked: Asked, call: Found, result: SearchResult, took_ms: float) -> dict[str, Any]:
    """The answer, remembered for the feedback that may come; without words there is none to learn from."""
    if not result.query:
        return search_answer(result, took_ms)
    ordered = call.options.get("sort") is not None  # an order that was asked for stays
    explore = 0.0 if ordered else call.options.get("explore")
    impressions = asked.service.impressions
    page, query_id, drawn = impressions.show(call.collection, result, key=asked.key, explore=explore)
    if seen := impressions.find(call.collection, query_id):
        await _join(asked, call, seen)
    return search_answer(page, took_ms, query_id, drawn)


async def _join(asked: Asked, call: Found, page: Impression) -> None:
    """Join a page to the task that its search named, by the collection's own name."""
    if (episode := call.options.get("episode")) is not None:
        name = await asked.service.read(partial(asked.service.catalogue.own_name, call.collection))
        asked.service.episodes.add_page(asked.key, episode, name, page)


def _characters(call: Predict | Attend | Differentiate) -> int:
    return sum(map(len, call.queries or ()))


def _ms_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)


# ---- attention


@serves(
    attention,
    Attend,
    *(*_OF_VECTORS, Conflict, Gone, AnswerTooLarge),
    response_model=AttendAnswer,
    responses=TENSOR_ANSWER,
)
async def attend(asked: Asked, call: Attend) -> Response:
    """With `Accept: application/x-safetensors` the numbers come as tensors, and the rest as JSON in `answer`
    of the header's `__metadata__`.
    """
    started = time.perf_counter()
    tensors = wants_tensors(asked.request)
    largest = MAX_TENSOR_BYTES if tensors else MAX_JSON_VECTOR_BYTES
    work = partial(attention_of, asked.service.catalogue, call, asked.key, largest)
    parts = await asked.service.searching.run(work, characters=_characters(call))
    took = {"took_ms": _ms_since(started)}
    if tensors:
        return tensors_answer(attended_arrays(parts), attended_facts(parts) | took)
    return json_answer(attended_json(parts) | took)


@serves(
    attention,
    Differentiate,
    *(*_OF_VECTORS, Conflict, Gone),
    response_model=VjpAnswer,
    responses=TENSOR_ANSWER,
)
async def vjp(asked: Asked, call: Differentiate) -> Response:
    """The server keeps nothing in between; a state that was replaced since is `gone` (410): attend again."""
    started = time.perf_counter()
    include = call.options.get("include", ("states", "head", "bias", "table"))
    work = partial(gradients_of, asked.service.catalogue, call, asked.key)
    gradients = await asked.service.searching.run(work, characters=_characters(call))
    facts = stamped(gradients.stamp) | {"took_ms": _ms_since(started)}
    states = {"states": np.ascontiguousarray(gradients.states)} if "states" in include else {}
    for name, gradient in (("bias", gradients.bias), ("table", gradients.table)):
        if gradient is not None and name in include:
            states[name] = np.ascontiguousarray(gradient)
    head = gradients.head if "head" in include else {}
    if wants_tensors(asked.request):
        return tensors_answer(states | {f"head.{name}": tensor for name, tensor in head.items()}, facts)
    return json_answer(facts | states | ({"head": json_tensors(head)} if head else {}))


# ---- feedback

_WRITTEN = (Conflict, CorruptData, FeedbackFull, InsufficientStorage)


@serves(feedback, RecordFeedback, *_WRITTEN, UnknownQuery, body=Events)
async def record_feedback(asked: Asked, call: RecordFeedback) -> Any:
    service = asked.service
    events: Any = call.events
    work = Feedback(service.catalogue, service.impressions, call.collection, asked.key, events)
    return await service.feedback.run(work, characters=sum(len(event.object_id) for event in events))


@serves(feedback, ReadOwnJudgements, CorruptData)
async def own_judgements(asked: Asked, call: ReadOwnJudgements) -> OwnJudgements:
    def read() -> OwnJudgements:
        from dsearch.training import judging  # a server that only searches does not load training

        with asked.service.catalogue.whole(call.collection) as opened:
            return judging.own_judgements(opened, _person(asked, call.client_id))

    return await asked.service.read(read)


@serves(feedback, FindQueriesToJudge, ModelNotFound, CorruptData)
async def next_to_judge(asked: Asked, call: FindQueriesToJudge) -> QueriesToJudge:
    def read() -> QueriesToJudge:
        from dsearch.training import judging

        with asked.service.catalogue.whole(call.collection, encoder=True) as opened:
            own = judging.own_judgements(opened, _person(asked, call.client_id))
            judged = list(own.queries.values())
            return judging.queries_to_judge(opened, version=call.version, judged=judged, limit=call.limit)

    return await asked.service.read(read)


def _person(asked: Asked, client_id: str | None) -> str | None:
    """Return the person: by key where keys are needed, else by client; None is everybody."""
    return asked.key or (CLIENT + client_id if client_id else None)


@serves(feedback, ReportOutcome, *_WRITTEN, UnknownEpisode)
async def outcome(asked: Asked, call: ReportOutcome) -> Any:
    service = asked.service
    work = partial(
        record_outcome,
        service.catalogue,
        service.episodes,
        call.collection,
        asked.key,
        call.episode,
        TaskOutcome(call.useful_ids, call.success),
        call.client_id,
    )
    return await service.feedback.run(work)

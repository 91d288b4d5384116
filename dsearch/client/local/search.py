"""Search, attention and feedback of an engine in this process; see `dsearch/operations/search.py`.

Feedback consists of events about the words of a query, since only servers remember pages.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dsearch import operations, results
from dsearch.attention_options import AttentionOptions
from dsearch.client.local.engine import handles
from dsearch.client.wire import numbers, one_vector, ragged
from dsearch.declared import check_keywords
from dsearch.engine import Collection, LayerOptions
from dsearch.engine.feedback import TaskOutcome, impression_of
from dsearch.errors import InvalidRequest
from dsearch.search_options import SearchOptions, joined_names
from dsearch.store import Event, FeedbackStore, Impression
from dsearch.types import FeedbackResult, OwnJudgements, QueriesToJudge, SearchResult

if TYPE_CHECKING:
    from dsearch.client.local.engine import LocalEngine
    from dsearch.engine.search.gradients import GradientQuery

Options = Mapping[str, Any]

# ---- search


@handles(operations.Search)
def search(local: LocalEngine, call: operations.Search) -> SearchResult:
    opened = local.engine.collection(call.collection)
    result = opened.search(call.query, vector=one_vector(call.vector), **_without_feedback(call.options))
    _remember(local, opened, [result], call.options)
    return result


@handles(operations.SearchBatch)
def search_batch(local: LocalEngine, call: operations.SearchBatch) -> list[SearchResult]:
    opened = local.engine.collection(call.collection)
    states = None if call.vectors is None else numbers(call.vectors)
    pages = opened.answer(call.texts, SearchOptions(**_without_feedback(call.options)), states)
    _remember(local, opened, pages, call.options)
    return pages


@handles(operations.FindSimilar)
def find_similar(local: LocalEngine, call: operations.FindSimilar) -> SearchResult:
    opened = local.engine.collection(call.collection)
    chosen, own = _without_feedback(call.options), one_vector(call.vector)
    result = opened.similar(call.like, unlike=call.unlike, query=call.query, vector=own, **chosen)
    _remember(local, opened, [result], call.options)
    return result


@handles(operations.RecordFeedback)
def feedback(local: LocalEngine, call: operations.RecordFeedback) -> FeedbackResult:
    return record_feedback(local.engine.collection(call.collection), call.events)


@handles(operations.ReadOwnJudgements)
def read_own_judgements(local: LocalEngine, call: operations.ReadOwnJudgements) -> OwnJudgements:
    from dsearch.training.judging import own_judgements

    key = None if call.client_id is None else f"client:{call.client_id}"
    return own_judgements(local.engine.collection(call.collection), key)


@handles(operations.FindQueriesToJudge)
def find_queries_to_judge(local: LocalEngine, call: operations.FindQueriesToJudge) -> QueriesToJudge:
    from dsearch.training.judging import queries_to_judge

    own = local.own_judgements(call.collection, client_id=call.client_id)
    opened, judged = local.engine.collection(call.collection), list(own.queries.values())
    return queries_to_judge(opened, version=call.version, judged=judged, limit=call.limit)


@handles(operations.ReportOutcome)
def report_outcome(local: LocalEngine, call: operations.ReportOutcome) -> FeedbackResult:
    opened = local.engine.collection(call.collection)
    outcome, now_s = TaskOutcome(call.useful_ids, call.success), time.time()
    pages, events = local.episodes.feedback(
        "", call.episode, opened.name, outcome, client_id=call.client_id, now_s=now_s
    )
    recorded = opened.feedback.record(pages, events)
    return FeedbackResult(recorded.events, recorded.repeated)


def _remember(
    local: LocalEngine, opened: Collection, pages: Sequence[SearchResult], options: Options
) -> None:
    if episode := options.get("episode"):
        for result in pages:
            if result.query:  # as in the service: without words there is nothing to learn from
                page = impression_of(result, uuid.uuid4().hex)
                local.episodes.add_page("", episode, opened.name, page)


# ---- attention


@handles(operations.Attend)
def attend(local: LocalEngine, call: operations.Attend) -> results.Attention:
    from dsearch.engine.search.gradients import attention_parts

    question = _question(call.queries, call.vectors, call.options)
    include: Any = set(call.include)
    return attention_parts(local.engine.collection(call.collection), question, include=include)


@handles(operations.Differentiate)
def differentiate(local: LocalEngine, call: operations.Differentiate) -> results.Gradients:
    from dsearch.engine.search.gradients import vjp

    gradients = vjp(
        local.engine.collection(call.collection),
        _question(call.queries, call.vectors, call.options),
        context=None if call.context is None else numbers(call.context),
        weights=None if call.weights is None else [row.tolist() for row in ragged(call.weights)],
        scores=None if call.scores is None else [row.tolist() for row in ragged(call.scores)],
    )
    return gradients if call.head else replace(gradients, head={})


@handles(operations.Predict)
def predict(local: LocalEngine, call: operations.Predict) -> results.Predictions:
    check_keywords(AttentionOptions, call.options, _SELECTION)
    import torch

    opened = local.engine.collection(call.collection)
    inputs: Any = call.queries
    if call.ids is not None:
        inputs = opened.states_of(call.ids)
    elif call.vectors is not None:
        inputs = torch.as_tensor(numbers(call.vectors), dtype=torch.float32)
    return opened.predict(inputs, field=call.field, evidence=call.evidence, **call.options)


_SELECTION = ("filter", "among", "exclude")
_OF_GRADIENTS = (*_SELECTION, "dtype", "stamp", "ids", "draft", "field", "with_head", "bias", "table")


def _question(queries: Sequence[str] | None, vectors: Any, options: Options) -> GradientQuery:
    import torch

    from dsearch.engine.search.gradients import GradientQuery

    check_keywords(AttentionOptions, options, _OF_GRADIENTS)
    shared = LayerOptions.__optional_keys__
    layer: Any = {name: value for name, value in options.items() if name in shared and value is not None}
    own: Any = {name: value for name, value in options.items() if name not in shared and value is not None}
    states = None if vectors is None else torch.as_tensor(numbers(vectors))
    return GradientQuery(states=states, texts=queries, options=layer, **own)


def _without_feedback(options: Options) -> Any:
    """Options as the engine takes them; the coin of `explore` is tossed by servers, which remember pages."""
    if "fields" in options:
        options = {**options, "fields": joined_names(options["fields"])}
    check_keywords(SearchOptions, options, ("explore", "episode"))
    return {name: value for name, value in options.items() if name not in ("explore", "episode")}


_NAMES = ("action_name", "object_id", "user_query", "client_id", "event_id", "timestamp")


def record_feedback(collection: Collection, events: Sequence[Mapping[str, Any]]) -> FeedbackResult:
    """Write events, all or none; durable on return. Sent to a server, the same events have the same ids.

    Raises:
        InvalidRequest: no events, an unknown name or action, no words, no document, not a time.
        Conflict, FeedbackFull, InsufficientStorage, Unavailable, CorruptData.
    """
    if not events:
        raise InvalidRequest("no events; give one or more")
    now = time.time()
    records = [_event_of(number, event, collection.feedback, now) for number, event in enumerate(events)]
    pages = {page.query_id: page for page, _ in records}
    recorded = collection.feedback.record([*pages.values()], [event for _, event in records])
    return FeedbackResult(recorded.events, recorded.repeated)


def _event_of(
    number: int, content: Mapping[str, Any], store: FeedbackStore, now: float
) -> tuple[Impression, Event]:
    from dsearch.training import ACTIONS

    if unknown := [str(name) for name in content if name not in _NAMES]:
        raise InvalidRequest(f"{number}: unknown field {unknown[0][:80]!r}; use {', '.join(_NAMES)}")
    if content.get("action_name") not in ACTIONS:
        raise InvalidRequest(f"{number}.action_name={content.get('action_name')!r}; use {', '.join(ACTIONS)}")
    for name in ("object_id", "user_query"):
        if not isinstance(content.get(name), str) or not content[name].strip():
            raise InvalidRequest(f"{number}.{name}={content.get(name)!r}; give text")
    words, action, document = content["user_query"], content["action_name"], content["object_id"]
    client, moment = content.get("client_id", ""), content.get("timestamp")
    query_id = "text-" + _digest([words])
    key = f"client:{client}" if client else ""
    page = store.impression(query_id) or Impression(query_id, words, now, key=key)
    event_id = content.get("event_id") or _digest([query_id, client, action, document, moment])
    event = Event(
        event_id=event_id,
        query_id=query_id,
        key=key,
        client_id=client,
        action=action,
        object_id=document,
        position=None,
        time_s=page.shown_s if moment is None else _seconds(number, moment),
        received_s=now,
    )
    return page, event


def _seconds(number: int, moment: Any) -> float:
    try:
        parsed = datetime.fromisoformat(moment)
    except (TypeError, ValueError):
        raise InvalidRequest(
            f"{number}.timestamp={moment!r}; use a time such as 2026-01-31T12:00:00Z"
        ) from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _digest(parts: list[str | None]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

"""Search, attention and feedback of an engine in this process; see `client/operations/search.py`.

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
from typing import TYPE_CHECKING, Any, Unpack

from dsearch import results
from dsearch.attention_options import AttentionOptions
from dsearch.client.options import AttendOptions, DifferentiableOptions, Filter, FindOptions, Part
from dsearch.client.wire import numbers, one_vector, ragged
from dsearch.declared import check_keywords
from dsearch.engine import Collection, LayerOptions, SearchEngine, calls
from dsearch.engine.episodes import Episodes, TaskOutcome
from dsearch.engine.feedback import impression_of
from dsearch.errors import InvalidRequest
from dsearch.search_options import SearchOptions
from dsearch.store import Event, FeedbackStore, Impression
from dsearch.types import (
    FeedbackResult,
    OwnJudgements,
    QueriesToJudge,
    SearchResult,
)

if TYPE_CHECKING:
    from dsearch.client.wire import Rows, Vectors
    from dsearch.engine.search.gradients import GradientQuery


class LocalSearch:
    """The calls that search and attend; each is described in `Client`."""

    engine: SearchEngine
    episodes: Episodes

    # ---- search

    def search(
        self,
        collection: str,
        query: str | None = None,
        *,
        vector: Sequence[float] | None = None,
        **options: Unpack[FindOptions],
    ) -> SearchResult:
        """The documents that a query attends to most."""
        opened = self.engine.collection(collection)
        result = opened.search(query, vector=one_vector(vector), **_without_feedback(options))
        self._remember(opened, [result], options)
        return result

    def search_batch(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        **options: Unpack[FindOptions],
    ) -> list[SearchResult]:
        """Many queries, or vectors in their place, answered from one state."""
        opened = self.engine.collection(collection)
        states = None if vectors is None else numbers(vectors)
        if queries is None and states is None:
            raise InvalidRequest("neither queries nor vectors; give at least one")
        texts = [""] * len(states) if queries is None and states is not None else queries or []
        pages = opened.answer(texts, SearchOptions(**_without_feedback(options)), states)
        self._remember(opened, pages, options)
        return pages

    def similar(
        self,
        collection: str,
        like: Sequence[str],
        *,
        unlike: Sequence[str] = (),
        query: str | None = None,
        vector: Sequence[float] | None = None,
        **options: Unpack[FindOptions],
    ) -> SearchResult:
        """The documents most like some ids and least like others, themselves left out."""
        opened = self.engine.collection(collection)
        chosen, own = _without_feedback(options), one_vector(vector)
        result = opened.similar(like, unlike=unlike, query=query, vector=own, **chosen)
        self._remember(opened, [result], options)
        return result

    def facets(
        self, collection: str, fields: Sequence[str], *, filter: Filter | None = None, limit: int = 10
    ) -> results.Facets:
        """Count the documents with each value of these metadata fields."""
        opened = self.engine.collection(collection)
        return calls.count_facets(opened, fields, filter=filter, limit=limit)

    def feedback(self, collection: str, events: Sequence[Mapping[str, Any]]) -> FeedbackResult:
        """Tell what people clicked or judged, by `user_query`: pages are remembered by servers alone."""
        return record_feedback(self.engine.collection(collection), events)

    def own_judgements(self, collection: str, *, client_id: str | None = None) -> OwnJudgements:
        """Return the opinions sent with this `client_id`, or all of them, as judgements."""
        from dsearch.training.judging import own_judgements

        key = None if client_id is None else f"client:{client_id}"
        return own_judgements(self.engine.collection(collection), key)

    def queries_to_judge(
        self,
        collection: str,
        *,
        version: str | None = None,
        limit: int = 10,
        client_id: str | None = None,
    ) -> QueriesToJudge:
        """Return queries on which the live version and another one differ most."""
        from dsearch.training.judging import queries_to_judge

        own = self.own_judgements(collection, client_id=client_id)
        opened = self.engine.collection(collection)
        judged = list(own.queries.values())
        return queries_to_judge(opened, version=version, judged=judged, limit=limit)

    def report_outcome(
        self,
        collection: str,
        episode: str,
        *,
        useful_ids: Sequence[str] = (),
        success: bool,
        client_id: str = "",
    ) -> FeedbackResult:
        """Record how a task ended, named by `episode` in its searches and in `get`."""
        opened = self.engine.collection(collection)
        outcome, now_s = TaskOutcome(useful_ids, success), time.time()
        pages, events = self.episodes.feedback(
            "", episode, opened.name, outcome, client_id=client_id, now_s=now_s
        )
        recorded = opened.feedback.record(pages, events)
        return FeedbackResult(recorded.events, recorded.repeated)

    def _remember(self, opened: Collection, pages: Sequence[SearchResult], options: FindOptions) -> None:
        if episode := options.get("episode"):
            for result in pages:
                if result.query:  # as in the service: without words there is nothing to learn from
                    page = impression_of(result, uuid.uuid4().hex)
                    self.episodes.add_page("", episode, opened.name, page)

    # ---- attention

    def attend(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        include: Sequence[Part] = (),
        **options: Unpack[DifferentiableOptions],
    ) -> results.Attention:
        """Attention itself: context, weights, scores and ids."""
        from dsearch.engine.search.gradients import attention_parts

        question = _question(queries, vectors, options)
        opened = self.engine.collection(collection)
        return attention_parts(opened, question, include=set(include))

    def vjp(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        context: Vectors | None = None,
        weights: Rows | None = None,
        scores: Rows | None = None,
        head: bool = True,
        **options: Unpack[DifferentiableOptions],
    ) -> results.Gradients:
        """The gradients of a loss of what `attend` answered; asked as it was, with its stamp."""
        from dsearch.engine.search.gradients import vjp

        gradients = vjp(
            self.engine.collection(collection),
            _question(queries, vectors, options),
            context=None if context is None else numbers(context),
            weights=None if weights is None else [row.tolist() for row in ragged(weights)],
            scores=None if scores is None else [row.tolist() for row in ragged(scores)],
        )
        return gradients if head else replace(gradients, head={})

    def predict(
        self,
        collection: str,
        queries: Sequence[str] | None = None,
        *,
        vectors: Vectors | None = None,
        ids: Sequence[str] | None = None,
        field: str,
        evidence: int = 10,
        **options: Unpack[AttendOptions],
    ) -> results.Predictions:
        """A field of the documents, pooled by the attention of each query."""
        ways = {"queries": queries, "vectors": vectors, "ids": ids}
        kinds = [name for name, way in ways.items() if way is not None]
        if len(kinds) != 1:
            named = " and ".join(kinds) or "neither queries nor vectors nor ids"
            raise InvalidRequest(f"{named}; give one of queries, vectors and ids")
        check_keywords(AttentionOptions, options, _SELECTION)
        import torch

        opened = self.engine.collection(collection)
        inputs: Any = queries
        if ids is not None:
            inputs = opened.states_of(ids)
        elif vectors is not None:
            inputs = torch.as_tensor(numbers(vectors), dtype=torch.float32)
        return opened.predict(inputs, field=field, evidence=evidence, **options)


_SELECTION = ("filter", "among", "exclude")
_OF_GRADIENTS = (*_SELECTION, "dtype", "stamp", "ids", "draft", "field", "with_head", "bias", "table")


def _question(queries: Sequence[str] | None, vectors: Any, options: DifferentiableOptions) -> GradientQuery:
    import torch

    from dsearch.engine.search.gradients import GradientQuery

    check_keywords(AttentionOptions, options, _OF_GRADIENTS)
    shared = LayerOptions.__optional_keys__
    layer: Any = {name: value for name, value in options.items() if name in shared and value is not None}
    own: Any = {name: value for name, value in options.items() if name not in shared and value is not None}
    states = None if vectors is None else torch.as_tensor(numbers(vectors))
    return GradientQuery(states=states, texts=queries, options=layer, **own)


def _without_feedback(options: FindOptions) -> Any:
    """Options as the engine takes them; the coin of `explore` is tossed by servers, which remember pages."""
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

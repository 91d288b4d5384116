"""Calls that search and attend, and what people make of what was found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any

from dsearch.operations.declared import Call, call
from dsearch.results import Attention, Gradients, Predictions
from dsearch.types import FeedbackResult, OwnJudgements, QueriesToJudge, SearchResult

Options = Mapping[str, Any]


@call("POST", "/v1/collections/{collection}/search", scope="read")
class Search(Call[SearchResult]):
    """Search for the documents that a query attends to most.

    Args:
        collection: its name.
        query: text.
        vector: takes the place of the text's embedding; without a text the search is dense.
        options: described by `SearchOptions`.
    """

    collection: str
    query: str | None = None
    _: KW_ONLY
    vector: Sequence[float] | None = None
    options: Options = dataclasses.field(default_factory=dict[str, Any])


@call("POST", "/v1/collections/{collection}/search/batch", scope="read")
class SearchBatch(Call[list[SearchResult]]):
    """Search with many queries, or vectors in their place, in one state."""

    collection: str
    queries: Sequence[str] | None = None
    _: KW_ONLY
    vectors: Any = None
    options: Options = dataclasses.field(default_factory=dict[str, Any])


@call("POST", "/v1/collections/{collection}/similar", scope="read")
class FindSimilar(Call[SearchResult]):
    """Search by example: documents like some ids and unlike others, without these."""

    collection: str
    like: Sequence[str]
    _: KW_ONLY
    unlike: Sequence[str] = ()
    query: str | None = None
    vector: Sequence[float] | None = None
    options: Options = dataclasses.field(default_factory=dict[str, Any])


@call("POST", "/v1/collections/{collection}/feedback", scope="write")
class RecordFeedback(Call[FeedbackResult]):
    """Record clicks and judgements, all of them or none.

    Each event has `action_name` (click, purchase, thumbs_up, …), `object_id`, and `query_id` of a search's
    answer or `user_query`, its words; `event_id` and `client_id` if there are any. Pages of searches, and so
    their `query_id`, are remembered by servers only.
    """

    collection: str
    events: Sequence[Mapping[str, Any]]


@call("GET", "/v1/collections/{collection}/judgements", query=("client_id",))
class ReadOwnJudgements(Call[OwnJudgements]):
    """Return the opinions sent with this key or `client_id` as judgements."""

    collection: str
    _: KW_ONLY
    client_id: str | None = None


@call("GET", "/v1/collections/{collection}/judgements/next", query=("version", "limit", "client_id"))
class FindQueriesToJudge(Call[QueriesToJudge]):
    """Return queries on which two versions differ most.

    Args:
        collection: its name.
        version: version to compare with the live one; the latest other one when None.
        limit: number of queries, at most 100.
        client_id: whose judged queries are left out.
    """

    collection: str
    _: KW_ONLY
    version: str | None = None
    limit: int = 10
    client_id: str | None = None


@call("POST", "/v1/collections/{collection}/outcomes", scope="write")
class ReportOutcome(Call[FeedbackResult]):
    """Record how a task ended, named by `episode` in its searches and in `get`.

    Args:
        collection: that was searched.
        episode: name of the task.
        useful_ids: documents that helped; without any, all that were read count alike.
        success: whether the task succeeded.
        client_id: user or run that the agent works for.
    """

    collection: str
    episode: str
    _: KW_ONLY
    useful_ids: Sequence[str] = ()
    success: bool
    client_id: str = ""


@call("POST", "/v1/collections/{collection}/attend", scope="read")
class Attend(Call[Attention]):
    """Compute attention: context, weights, scores and ids.

    Any number of queries: over HTTP they are sent 64 at a time, or fewer where their answer is too large, all
    of one state.

    Args:
        collection: its name.
        queries: texts. With vectors they are the words for the keyword leg.
        vectors: query states [n, dimension], in place of what the encoder gives.
        include: "keys", "values", "positions" and "texts" of the candidates; "parts" of their scores by head;
            "slopes", how their dense scores move with the query state.
        options: how they attend: `DifferentiableOptions`.
    """

    collection: str
    queries: Sequence[str] | None = None
    _: KW_ONLY
    vectors: Any = None
    include: Sequence[str] = ()
    options: Options = dataclasses.field(default_factory=dict[str, Any])


@call("POST", "/v1/collections/{collection}/vjp", scope="read")
class Differentiate(Call[Gradients]):
    """Differentiate an answer of `attend`: the same request, with its stamp.

    Args:
        collection: its name.
        queries: as for `attend`.
        vectors: as for `attend`.
        context: the loss's gradient in each context.
        weights: in the weights, a row of as many numbers as the query has candidates.
        scores: likewise in the scores.
        head: whether the gradients of the head are wanted.
        options: as for `attend`; `stamp` is required.

    Raises:
        Gone: the state was replaced since: attend again.
    """

    collection: str
    queries: Sequence[str] | None = None
    _: KW_ONLY
    vectors: Any = None
    context: Any = None
    weights: Any = None
    scores: Any = None
    head: bool = True
    options: Options = dataclasses.field(default_factory=dict[str, Any])


@call("POST", "/v1/collections/{collection}/predict", scope="read")
class Predict(Call[Predictions]):
    """Predict a field of the documents, pooled by attention, for up to 64 queries.

    Args:
        collection: its name.
        queries: texts; give these, vectors or ids.
        vectors: as for `attend`.
        ids: documents whose embeddings are the queries.
        field: number, string, boolean or vector of the metadata by its dotted path, or value.
        evidence: documents of largest weight to show with each prediction.
        options: how they attend: `AttendOptions`.
    """

    collection: str
    queries: Sequence[str] | None = None
    _: KW_ONLY
    vectors: Any = None
    ids: Sequence[str] | None = None
    field: str
    evidence: int = 10
    options: Options = dataclasses.field(default_factory=dict[str, Any])

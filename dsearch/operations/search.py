"""Calls that search and attend, and what people make of what was found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any, Literal

from dsearch.attention_options import AttentionOptions, Differentiated, Selection
from dsearch.declared import NOT_SENT, Values
from dsearch.errors import InvalidRequest, amount
from dsearch.fields import (
    MAX_ATTENDED,
    MAX_EXAMPLES,
    MAX_QUERIES,
    DocumentId,
    EpisodeName,
    Flag,
    Name,
    QueryText,
    Row,
    StampGiven,
    StateText,
    Vector,
    Version,
)
from dsearch.operations.declared import Call, call
from dsearch.results import Attention, Gradients, Predictions
from dsearch.search_options import SearchOptions, ServedOptions
from dsearch.types import FeedbackResult, OwnJudgements, QueriesToJudge, SearchResult

FindOptions = Annotated[Mapping[str, Any], SearchOptions, ServedOptions]
AttendOptions = Annotated[Mapping[str, Any], AttentionOptions, Selection]
DifferentiableOptions = Annotated[Mapping[str, Any], AttentionOptions, Selection, Differentiated]
_AttendedTexts = Annotated[Sequence[StateText], Values(shortest=1, longest=MAX_ATTENDED)] | None
_AttendedVectors = Annotated[Any, Values(shortest=1, longest=MAX_ATTENDED, sent=Sequence[Vector])] | None
_Rows = Annotated[Any, Values(shortest=1, longest=MAX_ATTENDED, sent=Sequence[Row])] | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """What a request for gradients has over HTTP only.

    Attributes:
        stamp: state of the answer.
        include: gradients to return.
    """

    stamp: Annotated[object, Values(sent=StampGiven)]
    include: Annotated[
        Sequence[
            Annotated[
                Literal["states", "head", "bias", "table"], Values("states, head, bias or table, any of them")
            ]
        ],
        Values(longest=4),
    ] = ("states", "head", "bias", "table")


GradientOptions = Annotated[Mapping[str, Any], AttentionOptions, Selection, Differentiated, Backward]


@call("POST", "/v1/collections/{collection}/search", scope="read")
class Search(Call[SearchResult]):
    """Search for the documents that a query attends to most.

    Args:
        collection: its name.
        query: text; with a vector its words for the keyword leg.
        vector: takes the place of the text's embedding; without a query the search is dense.
        options: described by `SearchOptions`.
    """

    collection: str
    query: QueryText | None = None
    _: KW_ONLY
    vector: Vector | None = None
    options: FindOptions = dataclasses.field(default_factory=dict[str, Any])

    def check(self) -> None:
        """Refuse a search for nothing."""
        if self.query is None and self.vector is None:
            raise InvalidRequest("neither query nor vector; give at least one")


@call("POST", "/v1/collections/{collection}/search/batch", scope="read")
class SearchBatch(Call[list[SearchResult]]):
    """Search with many queries, or vectors in their place, in one state.

    Args:
        collection: its name.
        queries: texts; with vectors their words for the keyword leg.
        vectors: one a query, in place of the texts' embeddings.
        options: described by `SearchOptions`.
    """

    collection: str
    queries: Annotated[Sequence[QueryText], Values(shortest=1, longest=MAX_QUERIES)] | None = None
    _: KW_ONLY
    vectors: Annotated[Any, Values(shortest=1, longest=MAX_QUERIES, sent=Sequence[Vector])] | None = None
    options: FindOptions = dataclasses.field(default_factory=dict[str, Any])

    @property
    def texts(self) -> Sequence[str]:
        """The texts, "" for a query without one."""
        return [""] * len(self.vectors) if self.queries is None else self.queries  # type: ignore[arg-type]

    def check(self) -> None:
        """Refuse a search for nothing, and other numbers of texts than of vectors."""
        if self.queries is None and self.vectors is None:
            raise InvalidRequest("neither queries nor vectors; give at least one")
        if self.vectors is not None and len(self.vectors) != len(self.texts):
            raise InvalidRequest(
                f"{amount(len(self.texts), 'query')} and {amount(len(self.vectors), 'vector')}; give as many"
            )


@call("POST", "/v1/collections/{collection}/similar", scope="read")
class FindSimilar(Call[SearchResult]):
    """Search by example: documents like some ids and unlike others, without these (Rocchio's query).

    Args:
        collection: its name.
        like: ids of wanted examples; they are not among the hits.
        unlike: ids of unwanted examples; they are not among the hits.
        query: text to combine with the examples.
        vector: combined with the examples in place of the text's embedding.
        options: described by `SearchOptions`.
    """

    collection: str
    like: Annotated[Sequence[DocumentId], Values(shortest=1, longest=MAX_EXAMPLES)]
    _: KW_ONLY
    unlike: Annotated[Sequence[DocumentId], Values(longest=MAX_EXAMPLES)] = ()
    query: QueryText | None = None
    vector: Vector | None = None
    options: FindOptions = dataclasses.field(default_factory=dict[str, Any])


@call("POST", "/v1/collections/{collection}/feedback", scope="write")
class RecordFeedback(Call[FeedbackResult]):
    """Record clicks and judgements, all of them or none. Training learns from them.

    The page that an event is about is stored with it: the query, what was shown where. Pages that nobody
    reacts to are not stored.

    Each event has `action_name` (click, purchase, thumbs_up, …), `object_id`, and `query_id` of a search's
    answer or `user_query`, its words; `event_id` and `client_id` if there are any. Pages of searches, and so
    their `query_id`, are remembered by servers only.
    """

    collection: str
    events: Sequence[Mapping[str, Any]]


@call("GET", "/v1/collections/{collection}/judgements", query=("client_id",))
class ReadOwnJudgements(Call[OwnJudgements]):
    """Return the opinions sent with this key or `client_id` as judgements, as training takes them.

    `missing` is the number of further judged queries until a training can be told from chance.

    Args:
        collection: its name.
        client_id: client_id that the opinions were sent with; with a key, its own count.
    """

    collection: str
    _: KW_ONLY
    client_id: Name | None = None


@call("GET", "/v1/collections/{collection}/judgements/next", query=("version", "limit", "client_id"))
class FindQueriesToJudge(Call[QueriesToJudge]):
    """Return queries on which the live version and another one differ most: their judgements tell most.

    Args:
        collection: its name.
        version: version to compare with the live one; the latest other one when None.
        limit: number of queries.
        client_id: whose judged queries are left out.
    """

    collection: str
    _: KW_ONLY
    version: Version | None = None
    limit: Annotated[int, Values("an integer from 1 to 100", low=1, high=100)] = 10
    client_id: Name | None = None


@call("POST", "/v1/collections/{collection}/outcomes", scope="write")
class ReportOutcome(Call[FeedbackResult]):
    """Record how a task ended: a grade for what was read in its searches here. Training learns from it.

    Sent again, the same outcome counts once; another outcome of the same episode is refused.

    Args:
        collection: that was searched.
        episode: as it was named in the searches and readings of the task.
        useful_ids: documents that helped; without any, all that were read count alike.
        success: whether the task succeeded.
        client_id: user or run that the agent works for.
    """

    collection: str
    episode: EpisodeName
    _: KW_ONLY
    useful_ids: Annotated[Sequence[DocumentId], Values(longest=100)] = ()
    success: Flag
    client_id: Name = ""


@call("POST", "/v1/collections/{collection}/attend", scope="read")
class Attend(Call[Attention]):
    """Compute attention for texts or query states: context, weights, scores and ids.

    Any number of queries: over HTTP they are sent 64 at a time, or fewer where their answer is too large, all
    of one state.

    Args:
        collection: its name.
        queries: texts; with vectors their words for the keyword leg, which may be empty.
        vectors: query states [n, dimension], in place of what the encoder gives.
        include: fields of each candidate besides id, weight and score: its key and value, the parts of its
            score by head, how its dense score moves with the query state (slopes), its position in the state
            that answers, and its title and text.
        options: how they attend: `DifferentiableOptions`.
    """

    collection: str
    queries: _AttendedTexts = None
    _: KW_ONLY
    vectors: _AttendedVectors = None
    include: Annotated[
        Sequence[
            Annotated[
                Literal["keys", "values", "parts", "slopes", "positions", "texts"],
                Values("keys, values, parts, slopes, positions or texts, any of them"),
            ]
        ],
        Values(longest=6),
    ] = ()
    options: DifferentiableOptions = dataclasses.field(default_factory=dict[str, Any])

    def check(self) -> None:
        """Refuse no queries, or queries in ways that exclude each other."""
        _require_queries(self)


@call(
    "POST",
    "/v1/collections/{collection}/vjp",
    scope="read",
    renamed={"context": "grad_context", "weights": "grad_weights", "scores": "grad_scores"},
)
class Differentiate(Call[Gradients]):
    """Differentiate an answer of `attend`: the same request, with its stamp and your loss's gradient.

    Args:
        collection: its name.
        queries: as for `attend`.
        vectors: as for `attend`.
        context: gradient of each query's context.
        weights: gradient of the candidates' weights, in the order of the answer.
        scores: gradient of the candidates' scores, in the order of the answer.
        head: whether the gradients of the head are wanted.
        options: as for `attend`; `stamp` is required.

    Raises:
        Gone: the state was replaced since: attend again.
    """

    collection: str
    queries: _AttendedTexts = None
    _: KW_ONLY
    vectors: _AttendedVectors = None
    context: _AttendedVectors = None
    weights: _Rows = None
    scores: _Rows = None
    head: Annotated[bool, NOT_SENT] = True
    options: GradientOptions = dataclasses.field(default_factory=dict[str, Any])

    def check(self) -> None:
        """Refuse no queries, or queries in ways that exclude each other."""
        _require_queries(self)


def _require_queries(call: Attend | Differentiate) -> None:
    texts, vectors, ids = call.queries, call.vectors, call.options.get("ids")
    if ids is not None and (texts is not None or vectors is not None):
        raise InvalidRequest("ids beside queries or vectors; give them alone")
    if texts is None and vectors is None and ids is None:
        raise InvalidRequest(
            "neither queries nor vectors; give one of the two, or both of the same number, or ids"
        )
    blank = [at for at, text in enumerate(texts or []) if not text.strip()]
    if blank and vectors is None:
        raise InvalidRequest(
            f"queries.{blank[0]} is empty; give at least one word, or vectors in addition to the texts"
        )
    if texts is not None and vectors is not None and len(texts) != len(vectors):
        raise InvalidRequest(
            f"{amount(len(texts), 'query')} and {amount(len(vectors), 'vector')}; give as many, or one of "
            "the two"
        )


@call("POST", "/v1/collections/{collection}/predict", scope="read")
class Predict(Call[Predictions]):
    """Predict a field of the documents, pooled by attention, for up to 64 queries.

    Args:
        collection: its name.
        queries: texts; give these, vectors or ids.
        vectors: query states [n, dimension], in place of the encoder's; dense search only.
        ids: documents whose embeddings are the queries; dense search only.
        field: number, string, boolean or vector of the metadata by its dotted path, or value.
        evidence: documents of largest weight to show with each prediction.
        options: how they attend: `AttendOptions`.
    """

    collection: str
    queries: Annotated[Sequence[QueryText], Values(shortest=1, longest=MAX_ATTENDED)] | None = None
    _: KW_ONLY
    vectors: _AttendedVectors = None
    ids: Annotated[Sequence[DocumentId], Values(shortest=1, longest=MAX_ATTENDED)] | None = None
    field: Annotated[str, Values("1 to 256 characters", shortest=1, longest=256)]
    evidence: Annotated[int, Values("an integer from 0 to 100", low=0, high=100)] = 10
    options: AttendOptions = dataclasses.field(default_factory=dict[str, Any])

    def check(self) -> None:
        """Refuse queries in no way, or in several."""
        kinds = [name for name in ("queries", "vectors", "ids") if getattr(self, name) is not None]
        if len(kinds) != 1:
            named = " and ".join(kinds) or "neither queries nor vectors nor ids"
            raise InvalidRequest(f"{named}; give one of queries, vectors and ids")

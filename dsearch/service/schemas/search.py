"""Requests and answers of searches, as the OpenAPI document shows them.

Requests are checked field by field, and errors say what is allowed; unknown names are rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dsearch.attention import POOLINGS, SCORES
from dsearch.engine.feedback import MAX_EXPLORE
from dsearch.engine.ranking.scores import KERNELS
from dsearch.engine.search.pagination import MAX_CURSOR_CHARACTERS
from dsearch.service.schemas.common import HIT, STAMP, Stamped, example
from dsearch.service.wire.fields import Given, allowed, listed
from dsearch.service.wire.json import parse
from dsearch.store import Filter, parse_filter
from dsearch.types import Document, Mode

MAX_LIMIT = 1000
MAX_OFFSET = 10_000
MAX_QUERY_CHARACTERS = 8192
MAX_QUERIES = 256
MAX_BATCH_HITS = 25_600
MAX_HOPS = 4


def _words(text: str) -> str:
    if not text.strip():
        raise ValueError("empty")
    text.encode()  # a lone surrogate is no text, and its error is a ValueError
    return text


QueryText = Annotated[
    str,
    Field(min_length=1, max_length=MAX_QUERY_CHARACTERS),
    AfterValidator(_words),
    allowed(f"1 to {MAX_QUERY_CHARACTERS} characters, at least one word"),
]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT), allowed(f"an integer from 1 to {MAX_LIMIT}")]
Offset = Annotated[int, Field(ge=0, le=MAX_OFFSET), allowed(f"an integer from 0 to {MAX_OFFSET}")]
SearchMode = Annotated[Mode, allowed("hybrid, dense or keyword")]
Version = Annotated[
    str, Field(pattern=r"^v[0-9]{1,9}$"), allowed("a registered version such as v1; v0 is untrained")
]
Hops = Annotated[int, Field(ge=1, le=MAX_HOPS), allowed(f"an integer from 1 to {MAX_HOPS}")]
if TYPE_CHECKING:
    ScoreName = PoolingName = str
else:  # the schema lists what is registered
    ScoreName, PoolingName = Literal[tuple(SCORES)], Literal[tuple(POOLINGS)]
Score = Annotated[ScoreName, allowed(listed(SCORES))]
Pooling = Annotated[PoolingName, allowed(listed(POOLINGS))]
YesOrNo = Annotated[bool, allowed("true or false")]
Threshold = Annotated[
    float, Field(ge=-1e9, le=1e9, allow_inf_nan=False), allowed("a number from -1e9 to 1e9")
]
CursorText = Annotated[
    str, Field(min_length=1, max_length=MAX_CURSOR_CHARACTERS), allowed("the next_cursor of an answer")
]
FilterGiven = Annotated[dict[str, Any], allowed('an object such as {"year": {"gte": 1990}}')]
FilterText = Annotated[
    str,
    Field(min_length=2, max_length=8192),
    AfterValidator(_words),
    allowed('JSON of 2 to 8192 characters, such as {"year":{"gte":1990}}'),
]
Positive = Annotated[float, Field(gt=0, le=1e6), allowed("a number above 0, at most 1e6")]
Explore = Annotated[
    float, Field(ge=0, le=MAX_EXPLORE), allowed(f"a share of the pages from 0 to {MAX_EXPLORE}")
]
HopStrength = Annotated[float, Field(ge=0, le=10), allowed("a number from 0 to 10")]
Number = Annotated[float, Field(allow_inf_nan=False)]
# Checked by pydantic alone: a Python call for each number would hold up the event loop.
Vector = Annotated[list[Number], Field(min_length=1, max_length=16_384)]


class Filtered(Given):
    """Filter on documents."""

    filter: FilterGiven | None = Field(
        None,
        description="condition on metadata: {field: {condition: value}}, with eq, ne, gt, "
        "gte, lt, lte, in, nin and exists, under and, or and not; dots lead into objects",
        examples=[{"year": {"gte": 2017}, "not": {"draft": {"eq": True}}}],
    )

    def tree(self) -> Filter | None:
        """The filter, checked.

        Raises:
            InvalidRequest: where it is wrong, and what is allowed there.
        """
        return None if self.filter is None else parse_filter(self.filter)


class SearchFields(Filtered):
    """Options of a search."""

    limit: Limit = Field(10, description="maximum number of hits")
    offset: Offset = Field(0, description="number of hits to skip")
    cursor: CursorText | None = Field(
        None, description="next_cursor of the previous page; continues its ranking, replaces offset"
    )
    mode: SearchMode = Field("hybrid", description="embeddings and keywords, or one of them")
    model: Version | None = Field(None, description="version; the live one by default")
    explain: YesOrNo = Field(False, description="whether hits carry the parts of their scores")
    highlight: YesOrNo = Field(False, description="whether hits carry fragments with the query's words")
    operators: YesOrNo = Field(
        True, description='whether to require "phrases" and +terms, and to exclude -terms'
    )
    score_threshold: Threshold | None = Field(None, description="omit hits of a lower score")
    weight_threshold: Threshold | None = Field(None, description="omit hits of a lower weight")
    hops: Hops | None = Field(
        None,
        description="rounds of search, each refining the query; the model's own by default",
    )
    hop_strength: HopStrength | None = Field(
        None, description="strength of the later rounds; the model's own by default"
    )
    partial: YesOrNo = Field(
        False,
        description="in a cluster: whether to answer without shards that are down, with the share of missing "
        "documents, instead of failing",
    )
    explore: Explore | None = Field(
        None,
        description="share of such pages on which two random positions may swap, to separate preference "
        "from position in feedback; the service's setting, 0 unless set, by default",
    )


class SearchRequest(SearchFields):
    """One query."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [
                {"query": "how does attention pool values?", "limit": 10, "mode": "hybrid"},
                {
                    "query": 'pooling "attention weights" -convolution',
                    "filter": {"year": {"gte": 2017}},
                    "highlight": True,
                },
            ]
        },
    )

    query: QueryText


def tree_of(text: str | None) -> Filter | None:
    """A filter that came as text in a URL; raises InvalidJson, InvalidRequest."""
    return None if text is None else parse_filter(parse(text.encode()))


class SearchParameters(SearchFields):
    """One query in the URL."""

    query: QueryText = Field(alias="q", description="the words to search for", examples=["attention pooling"])
    filter: FilterText | None = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        None, description="as JSON", examples=['{"year": {"gte": 2017}}']
    )

    def tree(self) -> Filter | None:
        """The filter, read and checked; raises InvalidJson, InvalidRequest."""
        return tree_of(self.filter)


class BatchRequest(SearchFields):
    """Many queries with the same options."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"queries": ["what is a key?", "what is a value?"], "limit": 5}]},
    )

    queries: Annotated[list[QueryText], Field(min_length=1, max_length=MAX_QUERIES)]

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        hits = len(self.queries) * (self.limit + self.offset)
        if hits > MAX_BATCH_HITS:
            raise ValueError(
                f"{len(self.queries)} queries of limit + offset {self.limit + self.offset} are {hits} hits; "
                f"use at most {MAX_BATCH_HITS} in one request"
            )
        return self


class AttendFields(Filtered):
    """Texts or vectors, and how they attend to the documents."""

    queries: Annotated[list[QueryText], Field(min_length=1, max_length=64)] | None = Field(
        None, description="texts; give these or vectors"
    )
    vectors: Annotated[list[Vector], Field(min_length=1, max_length=64)] | None = Field(
        None,
        description="query states [n, dimension], in place of the encoder's; dense search only",
    )
    mode: SearchMode = "hybrid"
    model: Version | None = None
    candidates: Annotated[int, Field(ge=1, le=MAX_LIMIT), allowed(f"an integer from 1 to {MAX_LIMIT}")] = (
        Field(100, description="documents that each leg proposes for each head")
    )
    hops: Hops | None = None
    hop_strength: HopStrength | None = None
    score: Score = Field(
        "dot", description="comparison of query and key; all but dot rescore candidates of the inner product"
    )
    pooling: Pooling = Field("soft", description="softmax, best document only, or equal weights")
    width: Positive | None = Field(
        None, description=f"kernel width: {', '.join(KERNELS)}", json_schema_extra={"x-scores": [*KERNELS]}
    )
    temperature: Positive | None = Field(
        None, description="divisor of the scores; the model's own by default"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.queries is None) == (self.vectors is None):
            given = "neither queries nor vectors" if self.queries is None else "queries and vectors"
            raise ValueError(f"{given}; give one of the two")
        return self


class PredictRequest(AttendFields):
    """A field of the documents to pool."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"queries": ["what is a key?"], "field": "year"}]},
    )

    field: Annotated[str, Field(min_length=1, max_length=256), allowed("1 to 256 characters")] = Field(
        description="a number, string or boolean of the metadata by its dotted path, or value"
    )
    evidence: Annotated[int, Field(ge=0, le=100), allowed("an integer from 0 to 100")] = Field(
        10, description="documents of largest weight to show with each prediction"
    )


class DocumentGiven(Given):
    """A document to store."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "id": "q-mc2",
                    "title": "Queries, keys, values",
                    "text": "Attention pools …",
                    "metadata": {"year": 2017},
                }
            ]
        },
    )

    id: Annotated[str, Field(min_length=1), allowed("a string of 1 to 512 bytes")]
    text: Annotated[str, allowed("a string of at most 1 MiB")] = ""
    title: Annotated[str, allowed("a string of at most 64 KiB")] = ""
    metadata: Annotated[dict[str, Any], allowed("an object of JSON values")] = Field(
        {}, description="any JSON object"
    )
    value: Annotated[Number | list[Number] | None, allowed("a finite number or a list of them")] = Field(
        None, description="what attention can pool"
    )

    def document(self) -> Document:
        """As the engine takes it."""
        return Document(self.id, self.text, self.title, self.metadata, self.value)


_ATTENTION = {"candidates": 182, "entropy": 1.35, "covered_mass": 0.998, "null_weight": None}
_SEARCH_ANSWER = {
    "query_id": "0d9f1f6ab8f14bb0a1b1a7a3d1a4c0de",
    **STAMP,
    "took_ms": 9.4,
    "hits": [HIT],
    "next_cursor": "WzEsMywidjEiLDEyMCwxMCwxMDAsIjFmYTQ5ZWQ1MDNmYTJkYzEiXQ",
    "explored": None,
    "attention": _ATTENTION,
}


class Lesson(BaseModel):
    """A training query that moved a hit."""

    query: str | None = Field(description="its words; null: not kept (clicks, sentences of the documents)")
    grade: float | None = Field(description="of this document in its judgements; null: others were judged")
    share: float = Field(
        description="of what all training queries did to this hit at the first step of training, by absolute "
        "amounts: below 0 where it pushed the hit down. Later steps are not counted"
    )


class Learned(BaseModel):
    """Effect of training: the parent model's view of the same candidates, and the queries that pulled."""

    parent: str = Field(description="the version that training started from")
    score: float = Field(description="by the parent")
    weight: float = Field(description="by the parent")
    rank: int = Field(description="by the parent, from 1")
    dense: float = Field(
        description="what the dense part has gained; by shares where there are several heads"
    )
    keyword: float = Field(description="what the keyword part has gained")
    lessons: list[Lesson] | None = Field(description="those that moved it most; null: none are kept")


class Explanation(BaseModel):
    """The parts of a score: Σ shares · (dense + keyword) over the heads, plus mixing: 0 with one head."""

    dense: list[float] = Field(description="similarity, by head")
    keyword: list[float] = Field(description="words, by head, times the learned weight")
    head_weights: list[float] = Field(description="weight of the document, by head")
    terms: dict[str, list[float]] = Field(
        description="each query term's part of keyword, by head; terms are stemmed, and sum to it"
    )
    shares: list[float] = Field(description="how much of the weight comes from each head")
    mixing: float = Field(description="what comparing several heads adds")
    null_weight: float | None = Field(
        description='weight of "nothing fits"; null: the model has no slot for it'
    )
    learned: Learned | None = Field(
        None, description="what training changed; null for v0, and where it cannot be told (scope full)"
    )


class Highlight(BaseModel):
    """A piece of a document around the query's words; offsets count characters (code points) of the field."""

    field: Literal["title", "text"]
    start: int = Field(description="the piece's first character")
    text: str = Field(description="the piece")
    spans: list[tuple[int, int]] = Field(description="[start, end) of each word of the query")


class Passage(BaseModel):
    """A part of a long document; offsets count characters (code points) of its text."""

    ordinal: int = Field(description="which of the document's passages, from 0")
    start: int = Field(description="its first character")
    end: int = Field(description="the one behind its last")
    text: str


class Hit(BaseModel):
    """One found document."""

    model_config = example(HIT)

    rank: int = Field(description="counted from 1")
    id: str
    weight: float = Field(description="its share of the attention")
    score: float = Field(description="what hits are ordered by; higher is better")
    title: str
    text: str
    metadata: dict[str, Any]
    explain: Explanation | None = Field(None, description="when it was asked for")
    highlights: list[Highlight] | None = Field(None, description="when they were asked for")
    passage: Passage | None = Field(
        None, description="of a long document the part that its similarity comes from; left out for others"
    )


class Attention(BaseModel):
    """Spread of the attention."""

    candidates: int = Field(description="documents that were weighed")
    entropy: float = Field(
        description="of the weights, in nats; its exponential is the number of documents in question"
    )
    covered_mass: float | None = Field(
        description="share of the exact softmax over all documents that they hold; null: not computed"
    )
    null_weight: float | None = Field(
        description='weight of "nothing fits", which the documents leave; null: the model has no slot for it'
    )


class Explored(BaseModel):
    """Two positions of a page that were left to a coin."""

    pair: list[int] = Field(description="counted from 1")
    swapped: bool = Field(description="whether the documents there changed places")


class SearchAnswer(Stamped):
    """The hits of one query."""

    model_config = example(_SEARCH_ANSWER)

    query_id: str = Field(description="names this answer in feedback")
    took_ms: float = Field(description="from the parsed request to the answer, waiting included")
    hits: list[Hit]
    next_cursor: str | None = Field(
        description="asks for the hits behind these in the same ranking; null: these were the last"
    )
    explored: Explored | None = Field(description="positions that were left to a coin; null: none")
    partial: bool = Field(False, description="whether shards of a cluster were down; only if asked for")
    missing: float = Field(0.0, description="the share of the documents that could not be asked then")
    attention: Attention


class BatchAnswer(BaseModel):
    """One answer for each query, in their order, from one state."""

    model_config = example({"took_ms": 11.2, "results": [_SEARCH_ANSWER]})

    took_ms: float
    results: list[SearchAnswer]

"""What a search answers, as the OpenAPI document shows it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from dsearch.service.answer_parts import HIT, STAMP, Stamped, example

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
    """What training changed: the parent model's view of the same candidates, and which queries pulled."""

    parent: str = Field(description="the version that training started from")
    score: float = Field(description="by the parent")
    weight: float = Field(description="by the parent")
    rank: int = Field(description="by the parent, from 1")
    dense: float = Field(
        description="what the dense part has gained; by shares where there are several heads"
    )
    keyword: float = Field(description="what the keyword part has gained")
    overlay: float | None = Field(description="how much of dense is this document's own changed key")
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
    fusion_gate: list[float] | None = Field(
        description="what the model's gate multiplies the keyword weight by, by head; null: a constant weight"
    )
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
    """How the attention was spread."""

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

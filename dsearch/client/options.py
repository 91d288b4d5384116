"""The options of searches and of attention, as both clients and the local engine take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from dsearch.types import Mode, Stamp

Filter: TypeAlias = Mapping[str, Any]
"""What a document's metadata must meet: `{"year": {"gte": 2017}}`, with `and`, `or` and `not`."""


class FindOptions(TypedDict, total=False):
    """How to search. What is left out is as the server has it.

    limit: hits wanted, 1 to 1000 (10). offset: hits left out before the first. cursor: `next_cursor` of the
    page before, in place of an offset. mode: "hybrid", "dense" or "keyword". model: a version; the live one.
    filter: what a document's metadata must meet. score_threshold, weight_threshold: hits below are left out.
    operators: whether "phrases", +terms and -terms are understood. explain: whether hits carry the parts of
    their scores. highlight: whether they carry the pieces that show the query's words. hops, hop_strength:
    rounds of search, and how far each turns the query; the model's own. explore: the share of pages on which
    a coin swaps two documents, for feedback; a server's alone.
    """

    limit: int
    offset: int
    cursor: str | None
    mode: Mode
    model: str | None
    filter: Filter | None
    score_threshold: float | None
    weight_threshold: float | None
    operators: bool
    explain: bool
    highlight: bool
    hops: int | None
    hop_strength: float | None
    explore: float


class WayToAttend(TypedDict, total=False):
    """How queries attend. What is left out is as the server has it.

    mode: "hybrid", "dense" or "keyword"; dense without texts. candidates: documents that each leg proposes
    for each head (100). hops, hop_strength: rounds of search, and how far each turns the query; the model's.
    score: "dot", "cosine", "gaussian", … pooling: "soft", "hard" or "uniform". width: of a kernel score.
    temperature: of the softmax; the model's own. filter: what a document's metadata must meet.
    """

    mode: Mode
    candidates: int
    hops: int | None
    hop_strength: float | None
    score: str
    pooling: str
    width: float | None
    temperature: float | None
    filter: Filter | None


class AttendOptions(WayToAttend, total=False):
    """`WayToAttend`, and model: a version; the live one when left out."""

    model: str | None


class DifferentiableOptions(AttendOptions, total=False):
    """`AttendOptions`, and dtype: what is computed in; stamp: the state to be asked, from an answer."""

    dtype: Literal["float32", "float64"]
    stamp: Stamp | None


class TuneOptions(TypedDict, total=False):
    """How to tune. What is left out is as the server has it.

    exclude: query id → documents that have no part in its ranking. seed. promote: whether the tuned search
    answers if it did better on what was held out; accept: whatever that says. alpha, margin: of the gate.
    """

    exclude: Mapping[str, Sequence[str]]
    seed: int
    promote: bool
    accept: bool
    alpha: float
    margin: float


class TrainOptions(TypedDict, total=False):
    """How to train. What is left out is as the server has it.

    scope: "head", "query" or "full", and for the last two encoder_training ("lora" or "all") and
    encoder_learning_rate; for "full" negatives, how many hard ones each query has. objective: "listwise",
    "judged", "in-batch", …, or "value" with field: what to predict of the documents. null_slot: learn a
    weight for "nothing fits" too. heads, query_side ("linear", "low-rank" or "mlp"), epochs, learning_rate,
    seed. tune: whether keyword weight, k1, b and hop strength are chosen first. promote: whether it answers
    if it did better on what was held out; accept: whatever that says. alpha: the largest p-value that counts
    as a gain; margin: how far nDCG@10 may fall on seen or unseen documents.
    """

    scope: Literal["head", "query", "full"]
    encoder_training: Literal["lora", "all"]
    encoder_learning_rate: float
    negatives: int
    objective: str
    field: str
    null_slot: bool
    heads: int
    query_side: Literal["linear", "low-rank", "mlp"]
    epochs: int
    learning_rate: float
    seed: int
    tune: bool
    promote: bool
    accept: bool
    alpha: float
    margin: float


Part = Literal["keys", "values", "parts", "slopes"]

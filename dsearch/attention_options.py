"""The declaration of the options of attention: of `attend`, `predict`, their gradients and layers.

Every option is declared here once, as those of searches are in search_options.py, whose options of the same
name are the same. The command line (`dsearch attend`, `dsearch predict`), the HTTP schema, the engine and the
Python clients take theirs from here; a new option is a field of `AttentionOptions`, a line of
`AttentionKeywords` for type checkers, and its use in engine/ranking/.

This module is light: it imports neither torch nor the engine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, get_args

from dsearch.declared import Values, option
from dsearch.fields import (
    MAX_BIAS,
    MAX_IDS,
    DocumentId,
    Filter,
    StampGiven,
    Vector,
)
from dsearch.search_options import MAX_LIMIT, SearchOptions
from dsearch.types import Mode

Over = Literal["candidates", "all"]
OVER: tuple[str, ...] = get_args(Over)
CANDIDATES = 100  # of each leg and head
# Tests compare these with the functions of `dsearch.attention`, which takes seconds to import.
SCORE_NAMES = (
    "dot",
    "scaled_dot_product",
    "cosine",
    "general",
    "additive",
    "gaussian",
    "epanechnikov",
    "boxcar",
    "exact_match",
)
# Compare a field of the documents with the query's text; exact_match without a field compares vectors.
FIELD_SCORES = ("exact_match", "fuzzy", "prefix")
KERNELS = ("gaussian", "epanechnikov", "boxcar")
CONE_NAMES = ("exp", "relu", "sigmoid")  # weights that need not sum to 1
POOLING_NAMES = ("soft", "hard", "uniform", *CONE_NAMES)
LONGEST_STATE = 1e6  # of a query: scores over the smallest temperature stay finite in float32
# A smaller share of the exact attention among the candidates is mentioned in answers.
COVERED_ENOUGH = 0.95
_POSITIVE = {"low": 0, "high": 1e6, "inside": True, "allowed": "a number above 0, below 1e6"}


class SelectionKeywords(TypedDict, total=False):
    """Documents to attend to: those of the ids `among`, all when None, without those of `exclude`."""

    among: Sequence[str] | None
    exclude: Sequence[str]


class AttentionKeywords(TypedDict, total=False):
    """The options of `AttentionOptions` as keyword arguments, less model and score, by a test."""

    mode: Mode
    candidates: int
    over: Over
    hops: int | None
    hop_strength: float | None
    pooling: str
    width: float | None
    temperature: float | None
    match_field: str | None
    ignore_case: bool


def _as_searched(name: str) -> Any:
    """Declare an option that searches have too."""
    field = SearchOptions.__dataclass_fields__[name]
    return dataclasses.field(default=field.default, metadata=field.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """Options of attention."""

    mode: Mode = _as_searched("mode")  # noqa: RUF009
    model: str | None = _as_searched("model")
    candidates: int = option(
        CANDIDATES,
        "documents that each leg proposes for each head; over all documents the number that is listed",
        low=1,
        high=MAX_LIMIT,
    )
    over: Over = option(  # noqa: RUF009
        "candidates",
        "documents that share the attention: the candidates that the legs propose, or all, exactly",
        choices=OVER,
        allowed="candidates or all",
    )
    hops: int | None = _as_searched("hops")
    hop_strength: float | None = _as_searched("hop_strength")
    score: str = option(
        "dot",
        "comparison of query and key; among candidates all but dot rescore those of the inner product",
        choices=(*SCORE_NAMES, *FIELD_SCORES[1:]),
    )
    pooling: str = option(
        "soft",
        "softmax, best document only, or equal weights; without normalisation exp, relu or sigmoid of each "
        "score over the temperature",
        choices=POOLING_NAMES,
    )
    width: float | None = option(
        None, f"kernel width: {', '.join(KERNELS)}", json={"x-scores": [*KERNELS]}, **_POSITIVE
    )
    temperature: float | None = option(None, "divisor of the scores; the model's own by default", **_POSITIVE)
    match_field: str | None = option(
        None,
        "field that exact_match, fuzzy and prefix compare with the query's text, both in normal form NFC: "
        "id, title, text, or metadata by a dotted path",
        longest=256,
        json={"x-scores": [*FIELD_SCORES]},
    )
    ignore_case: bool = option(False, "whether that comparison ignores upper and lower case")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Documents to attend to.

    Attributes:
        filter: condition on their metadata, as for searches.
        among: ids of the documents to attend to, such as a user's history; all if not given.
        exclude: ids of documents to leave out, such as those seen already.
    """

    filter: Filter | None = None
    among: Annotated[Sequence[DocumentId], Values(longest=MAX_IDS)] | None = None
    exclude: Annotated[Sequence[DocumentId], Values(longest=MAX_IDS)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Differentiated:
    """What attention with gradients takes in addition.

    Attributes:
        stamp: state to use, from an answer; the present one if not given.
        ids: ids of documents whose embeddings are the queries; dense search only.
        draft: draft head that answers in place of a version; see POST …/heads.
        field: field to pool in place of W_V e: a number of the metadata by its dotted path, or value, a
            number or vector.
        with_head: tensors of a head that answers in place of the version's, as nested lists by the names of
            GET …/models/{version}/head; for a larger one see POST …/heads.
        bias: a number for each position of the state that answers, added to the scores of its document before
            the softmax; candidates are found without it.
        table: a row for each position of the state that answers, pooled in place of W_V e.
        dtype: precision of the computation.
    """

    stamp: Annotated[object, Values(sent=StampGiven)] | None = None
    ids: Annotated[Sequence[DocumentId], Values(shortest=1, longest=64)] | None = None
    draft: Annotated[str, Values("the id that handing in a head gave", pattern="^[0-9a-f]{24}$")] | None = (
        None
    )
    field: Annotated[str, Values("1 to 256 characters", shortest=1, longest=256)] | None = None
    with_head: (
        Annotated[object, Values("an object of nested lists", longest=64, sent=dict[str, Any])] | None
    ) = None
    bias: (
        Annotated[object, Values(f"up to {MAX_BIAS:,} numbers", longest=MAX_BIAS, sent=list[float])] | None
    ) = None
    table: (
        Annotated[object, Values(f"up to {MAX_BIAS:,} rows", longest=MAX_BIAS, sent=list[Vector])] | None
    ) = None
    dtype: Annotated[Literal["float32", "float64"], Values("float32 or float64")] = "float32"

"""Requests of attention and its gradients, as the OpenAPI document shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, model_validator

from dsearch.engine import GradientQuery, LayerOptions
from dsearch.engine.indexing.own_vectors import query_vectors
from dsearch.errors import DimensionMismatch, amount
from dsearch.service.schemas.search import MAX_QUERY_CHARACTERS, AttendFields, Number, Vector
from dsearch.service.wire.requests import RequestModel, allowed, encodable
from dsearch.types import Stamp

StateText = Annotated[
    str,
    Field(max_length=MAX_QUERY_CHARACTERS),
    AfterValidator(encodable),
    allowed(f"up to {MAX_QUERY_CHARACTERS} characters"),
]
# A gradient has a number for each candidate: up to 1000 of a leg and head.
Row = Annotated[list[Number], Field(max_length=65_536)]
Rows = Annotated[list[Row], Field(min_length=1, max_length=64)]
MAX_BIAS = 2_000_000  # positions; a body's own bound is some 400,000 numbers
_STAMP = {"generation": 3, "model": "v1", "sequence": 120}


class StampGiven(RequestModel):
    """The state to be asked, as an answer names it."""

    generation: Annotated[int, Field(ge=1, lt=2**53), allowed("the generation of an answer")]
    model: Annotated[
        str, Field(pattern=r"^v[0-9]{1,9}$"), allowed("a registered version such as v1; v0 is untrained")
    ]
    sequence: Annotated[int, Field(ge=0, lt=2**53), allowed("the sequence of an answer")]


class Differentiable(AttendFields):
    """Queries whose attention has gradients."""

    queries: (  # pyright: ignore[reportIncompatibleVariableOverride]
        Annotated[list[StateText], Field(min_length=1, max_length=64)] | None
    ) = Field(None, description="texts; with vectors their words for the keyword leg, which may be none")
    stamp: StampGiven | None = Field(
        None, description="state to use, from an answer; the present one if not given"
    )
    draft: Annotated[
        str | None, Field(pattern="^[0-9a-f]{24}$"), allowed("the id that handing in a head gave")
    ] = Field(None, description="draft head that answers in place of a version; see POST …/heads")
    field: Annotated[str, Field(min_length=1, max_length=256), allowed("1 to 256 characters")] | None = Field(
        None,
        description="field to pool in place of W_V e: a number of the metadata by its dotted path, or value, "
        "a number or vector",
    )
    with_head: (
        Annotated[dict[str, Any], Field(max_length=64), allowed("an object of nested lists")] | None
    ) = Field(
        None,
        description="tensors of a head that answers in place of the version's, as nested lists by the names "
        "of GET …/models/{version}/head; for a larger one see POST …/heads",
    )
    bias: (
        Annotated[list[Number], Field(max_length=MAX_BIAS), allowed(f"up to {MAX_BIAS:,} numbers")] | None
    ) = Field(
        None,
        description="a number for each position of the state that answers, added to the scores of its "
        "document before the softmax; candidates are found without it",
    )
    table: Annotated[list[Vector], Field(max_length=MAX_BIAS), allowed(f"up to {MAX_BIAS:,} rows")] | None = (
        Field(
            None,
            description="a row for each position of the state that answers, pooled in place of W_V e",
        )
    )
    dtype: Annotated[Literal["float32", "float64"], allowed("float32 or float64")] = Field(
        "float32", description="precision of the computation"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.ids is not None and (self.queries is not None or self.vectors is not None):
            raise ValueError("ids beside queries or vectors; give them alone")
        if self.queries is None and self.vectors is None and self.ids is None:
            raise ValueError(
                "neither queries nor vectors; give one of the two, or both of the same number, or ids"
            )
        blank = [at for at, text in enumerate(self.queries or []) if not text.strip()]
        if blank and self.vectors is None:
            raise ValueError(
                f"queries.{blank[0]} is empty; give at least one word, or vectors beside the texts"
            )
        if self.queries is not None and self.vectors is not None and len(self.queries) != len(self.vectors):
            raise ValueError(
                f"{amount(len(self.queries), 'query')} and {amount(len(self.vectors), 'vector')}; give as "
                "many, or either alone"
            )
        return self

    def to_query(self, dimension: int, owner: str = "") -> GradientQuery:
        """As the engine takes it, for embeddings of `dimension` numbers; drafts are those of the owner.

        Raises:
            DimensionMismatch: vectors of another length.
        """
        states = None if self.vectors is None else query_vectors(self.vectors, dimension, padding=True)
        options = self.attention_options()
        model: str | None = options.pop("model")
        stamp = None if self.stamp is None else Stamp(**self.stamp.model_dump())
        return GradientQuery(
            states=states,
            texts=self.queries,
            model=model,
            stamp=stamp,
            filter=self.tree(),
            dtype=self.dtype,
            options=LayerOptions(**options),
            ids=self.ids,
            draft=self.draft,
            owner=owner,
            field=self.field,
            with_head=self.with_head,
            bias=self.bias,
            table=self.table,
        )


class AttendRequest(Differentiable):
    """Options of an attention request."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [
                {"queries": ["what is a key?"], "candidates": 20, "include": ["values"]},
                {"queries": ["what is a key?"], "mode": "dense", "score": "gaussian", "width": 0.3},
            ]
        },
    )

    include: list[
        Annotated[
            Literal["keys", "values", "parts", "slopes", "positions", "texts"],
            allowed("keys, values, parts, slopes, positions or texts, any of them"),
        ]
    ] = Field(
        [],
        max_length=6,
        description="fields of each candidate besides id, weight and score: its key and value, the "
        "parts of its score by head, how its dense score moves with the query state, its position in the "
        "state that answers, and its title and text",
    )


class VjpRequest(Differentiable):
    """A gradient of what `attend` answered, to be led on to the queries and the head."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [{"queries": ["what is a key?"], "stamp": _STAMP, "grad_weights": [[1.0, -1.0]]}]
        },
    )

    stamp: StampGiven = Field(description="state of the answer")  # pyright: ignore
    grad_context: Annotated[list[Vector], Field(min_length=1, max_length=64)] | None = Field(
        None, description="gradient of each query's context"
    )
    grad_weights: Rows | None = Field(
        None, description="gradient of the candidates' weights, in the order of the answer"
    )
    grad_scores: Rows | None = Field(
        None, description="gradient of the candidates' scores, in the order of the answer"
    )
    include: list[
        Annotated[
            Literal["states", "head", "bias", "table"], allowed("states, head, bias or table, any of them")
        ]
    ] = Field(["states", "head", "bias", "table"], max_length=4, description="gradients to return")


def matrix(name: str, rows: list[list[float]], dimension: int) -> np.ndarray:
    """Rows of `dimension` numbers as an array [rows, dimension] of float64.

    Raises:
        DimensionMismatch: one has another length.
    """
    for position, row in enumerate(rows):
        if len(row) != dimension:
            raise DimensionMismatch(
                f"{name}.{position} has {amount(len(row), 'number')}; this collection's embeddings have "
                f"{dimension}"
            )
    return np.array(rows, np.float64)

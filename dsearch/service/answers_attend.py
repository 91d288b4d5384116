"""What attention, its gradients and predictions answer, as the OpenAPI document shows it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from dsearch.service.answer_parts import STAMP, Stamped, example


class Certificate(BaseModel):
    """Whether the first places are provably those that scoring every document would give."""

    proved: bool
    reason: str = Field(description="what the proof rests on, or what it lacks")


class AttendedQuery(BaseModel):
    """Attention of one query. Lists of candidates are in the same order, best first."""

    ids: list[str]
    weights: list[float]
    scores: list[float]
    context: list[float] = Field(description="Σ weight · value")
    keys: list[list[float]] | list[list[list[float]]] | None = Field(
        None,
        description="W_K e of each candidate, when asked for; by head where several heads may take different "
        "passages of long documents",
    )
    values: list[list[float]] | list[list[list[float]]] | None = Field(
        None, description="W_V e of each candidate, likewise"
    )
    dense: list[list[float]] | None = Field(None, description="of each head and candidate; with `parts`")
    keyword: list[list[float]] | None = Field(None, description="times its learned weight; with `parts`")
    head_weights: list[list[float]] | None = Field(None, description="each head's softmax; with `parts`")
    slopes: list[list[list[float]]] | None = Field(
        None,
        description="∂ dense / ∂ query state of each head and candidate, when asked for; null with hops",
    )
    null_weight: float | None = Field(
        None, description='weight of "nothing fits", where the model has a slot for it'
    )
    certificate: Certificate | None = Field(None, description="when it was asked for")


class AttendAnswer(Stamped):
    """Attention of each query. As safetensors: an array for all queries, zeros behind the last candidate."""

    model_config = example(
        {
            **STAMP,
            "hops": 1,
            "temperature": 0.05,
            "mixture": [1.0],
            "took_ms": 8.8,
            "results": [
                {
                    "ids": ["q-mc2", "a-17"],
                    "weights": [0.7, 0.3],
                    "scores": [0.87, 0.83],
                    "context": [0.11, -0.04],
                }
            ],
        }
    )

    hops: int = Field(description="rounds of search")
    temperature: float = Field(description="what scores were divided by")
    mixture: list[float] = Field(description="the share of each head")
    took_ms: float
    results: list[AttendedQuery]


class VjpAnswer(Stamped):
    """What a loss says to the query states and the head."""

    model_config = example(
        {
            **STAMP,
            "took_ms": 12.1,
            "states": [[0.01, -0.02]],
            "head": {"keyword_weight": [0.1], "log_temperature": -0.4},
        }
    )

    took_ms: float
    states: list[list[float]] | None = Field(None, description="a gradient for each query, when asked for")
    head: dict[str, Any] | None = Field(
        None, description="a gradient for each tensor of the head, of its shape, when asked for"
    )


class Evidence(BaseModel):
    """A document that a prediction came from."""

    id: str
    weight: float = Field(description="its share among the documents that have the field")
    value: Any


class LabelShare(BaseModel):
    """One label and its share of the weight."""

    label: str | bool
    share: float


class Prediction(BaseModel):
    """What one query predicts; all null when no candidate has the field."""

    kind: Literal["number", "vector", "label"] | None
    mean: float | list[float] | None
    spread: float | list[float] | None = Field(description="standard deviation around the mean")
    labels: list[LabelShare] | None = Field(description="largest first; shares sum to 1")
    evidence: list[Evidence]
    candidates: int = Field(description="documents that were pooled")
    without_field: int = Field(description="documents left out because they lack the field")


class PredictAnswer(Stamped):
    """A prediction for each query."""

    model_config = example(
        {
            **STAMP,
            "took_ms": 8.8,
            "results": [
                {
                    "kind": "number",
                    "mean": 2016.4,
                    "spread": 1.2,
                    "labels": None,
                    "evidence": [{"id": "q-mc2", "weight": 0.7, "value": 2017}],
                    "candidates": 2,
                    "without_field": 1,
                }
            ],
        }
    )

    took_ms: float
    results: list[Prediction]

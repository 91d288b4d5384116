"""Results of calls: plain and frozen. Texts, ids and numbers as they are; tensors as NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dsearch.types import Document, Stamp

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """Description of a collection. `pending` documents have no embedding yet and cannot be found.

    `passages` describes how long documents are split, None if they are not; `keys` how keys are stored;
    `model_problem` is the reason why the promoted version does not answer.
    """

    name: str
    documents: int
    pending: int
    generation: int
    model: str
    sequence: int
    encoder: dict[str, Any]
    passages: dict[str, Any] | None = None
    keys: dict[str, Any] | None = None
    model_problem: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A document that was not stored: its number in what was sent, counted from 1, and why."""

    line: int
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Written:
    """Result of a write: durable, and visible to every later search; lists the first refused documents."""

    sequence: int
    inserted: int
    updated: int
    unchanged: int
    refused: int
    problems: list[Refused]


@dataclass(frozen=True, slots=True)
class Deleted:
    """Result of a deletion: the number of deleted documents; `missing` ids belong to no document."""

    sequence: int
    deleted: int
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Changed:
    """A document's metadata, as they are now."""

    sequence: int
    id: str
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FacetValue:
    """A value of a field, and how many documents have it."""

    value: str | int | float | bool | None
    documents: int


@dataclass(frozen=True, slots=True)
class Facets:
    """Number of documents that meet the filter, and the most frequent values of each field among them."""

    documents: int
    facets: dict[str, list[FacetValue]]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Events that were new, and those that had been sent before and count once."""

    events: int
    repeated: int


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """Documents by id; `next` is the cursor of the page behind it, None on the last."""

    documents: list[Document]
    next: str | None


@dataclass(frozen=True, slots=True)
class Proof:
    """Certificate that the first hits are exactly those of scoring every document, with its reason."""

    proved: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of each query over its candidates, best first; zeros behind a query's last candidate.

    Attributes:
        ids: of each query's candidates.
        stamp: what it was computed from; `vjp` wants it back.
        hops: rounds of search.
        temperature: what scores were divided by.
        mixture: m_h, the share of each head.
        context: Σ_d weight(q, d) v_d.
        weights: the mixture of the heads' softmaxes.
        scores: what the candidates are ordered by.
        keys, values: of each candidate, with include "keys", "values"; [batch, heads, candidates, dim] where
            several heads may take different passages of long documents.
        dense, keyword, head_weights: by head, with include "parts".
        slopes: ∂ dense / ∂ query state, with include "slopes" and one round of search.
        certificates: one a query, with `certify`.
        null_weight: that of "nothing fits", where the model has a slot for it.
    """

    ids: list[list[str]]
    stamp: Stamp
    hops: int
    temperature: float
    mixture: Float[np.ndarray, " heads"]
    context: Float[np.ndarray, "batch value_dim"]
    weights: Float[np.ndarray, "batch candidates"]
    scores: Float[np.ndarray, "batch candidates"]
    keys: Float[np.ndarray, "batch *heads candidates key_dim"] | None = None
    values: Float[np.ndarray, "batch *heads candidates value_dim"] | None = None
    dense: Float[np.ndarray, "batch heads candidates"] | None = None
    keyword: Float[np.ndarray, "batch heads candidates"] | None = None
    head_weights: Float[np.ndarray, "batch heads candidates"] | None = None
    slopes: Float[np.ndarray, "batch heads candidates encoder_dim"] | None = None
    certificates: list[Proof] | None = None
    null_weight: Float[np.ndarray, " batch"] | None = None


@dataclass(frozen=True, slots=True)
class Vjp:
    """The gradients of a loss with respect to the query states, and to each tensor of the head."""

    stamp: Stamp
    states: Float[np.ndarray, "batch encoder_dim"]
    head: dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A document that a prediction came from: its share of the weight, and its field."""

    id: str
    weight: float
    value: Any


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction for one query: mean and spread of a number or vector, or the share of each label.

    `kind` is None, without a prediction, if no candidate has the field; `without_field` candidates were left
    out because they lack it.
    """

    kind: Literal["number", "vector", "label"] | None
    mean: float | list[float] | None
    spread: float | list[float] | None
    labels: dict[str | bool, float] | None
    evidence: list[Evidence]
    candidates: int
    without_field: int


@dataclass(frozen=True, slots=True)
class Predictions:
    """One prediction a query."""

    stamp: Stamp
    predictions: list[Prediction]


@dataclass(frozen=True, slots=True)
class Model:
    """One version, its parent and its record; `problem` is the reason why it cannot be used."""

    version: str
    parent: str | None
    live: bool
    record: dict[str, Any]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Models:
    """The versions of a collection; v0 is the untrained one."""

    live: str
    models: list[Model]


@dataclass(frozen=True, slots=True)
class Task:
    """Something that takes long.

    Attributes:
        id: names it.
        kind: "train", "tune", "evaluate", "refresh", "compact" or "migrate".
        collection: of what.
        state: "queued", "running", "done", "failed", "cancelled" or "interrupted".
        created, started, ended: ISO 8601.
        attempts: how often it was begun; more than once after the server was stopped.
        progress: `{stage, done, total, elapsed_s, eta_s}` while it runs.
        result: when done; of train and tune `{model, live, reason, gate}`, of evaluate the report, of refresh
            `{generation, model, keys}`, of compact `{complete, rows, bytes_before, bytes_after}`, of
            migrate `{documents, encoded, encoder, models_left_behind}`.
        problem: `{code, detail}`, and `hint` where a command helps, when it failed.
    """

    id: str
    kind: str
    collection: str
    state: str
    created: str
    started: str | None = None
    ended: str | None = None
    attempts: int = 0
    progress: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None

    @property
    def has_ended(self) -> bool:
        """True if the task will not change any more."""
        return self.state not in ("queued", "running")


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Tasks, the latest first; `next` is the cursor of the page behind it, None on the last."""

    tasks: list[Task]
    next: str | None


@dataclass(frozen=True, slots=True)
class ModelAdded:
    """A version that was handed in; it is not live."""

    model: str
    parent: str
    sequence: int


@dataclass(frozen=True, slots=True)
class AliasSet:
    """Result of setting an alias: its new target and its previous one."""

    alias: str
    collection: str
    previous: str | None


@dataclass(frozen=True, slots=True)
class Promoted:
    """The version that answers from now on, and the one that did."""

    model: str
    previous: str
    sequence: int

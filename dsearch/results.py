"""Results of calls, plain and frozen: the engine returns them, the service writes them, clients read them.

Texts, ids and numbers are as they are; tensors are NumPy arrays. The API's description takes that of a
field from `Attributes:`. The results of searches are in `dsearch.types`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dsearch.errors import DsearchError
from dsearch.types import Document, Stamp

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float, Int64


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """Description of a collection.

    Attributes:
        pending: number of documents that have no embedding yet and cannot be found.
        encoder: name and dimension of its encoder.
        language: language whose stems and stop words keyword search uses.
        search_fields: metadata fields whose strings keyword search has as words.
        passages: maximum number of tokens of a passage of a long document, and how many of them it shares
            with the one before; null: documents are not cut.
        keys: how the index stores its keys, what was requested, and recall, speed and size as measured when
            it was built; null for an index of an older release.
        model: version that answers.
        model_problem: why the promoted version does not answer, and which one does; or null.
        second_stage: whether documents have tokens, so that `stages: 2` can be searched with.
    """

    name: str
    documents: int
    pending: int
    generation: int
    model: str
    sequence: int
    encoder: dict[str, Any]
    language: str = "english"
    passages: dict[str, Any] | None = None
    keys: dict[str, Any] | None = None
    model_problem: str | None = None
    second_stage: bool = False
    search_fields: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class CollectionDamaged:
    """A collection that cannot be opened; `problem` has the members of its error."""

    name: str
    problem: dict[str, str]

    @classmethod
    def of(cls, name: str, error: DsearchError, detail: str | None = None) -> CollectionDamaged:
        """Describe a collection by the error that opening it raised; `detail` in place of its text."""
        return cls(name, {"code": error.code, "detail": str(error) if detail is None else detail})


@dataclass(frozen=True, slots=True)
class RefusedDocument:
    """A document that was not stored: its line or number in the request, counted from 1, and why."""

    line: int
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Acknowledged write: durable, and visible to every later search.

    Attributes:
        refused: number of documents that were not stored.
        problems: the first hundred of them.
    """

    sequence: int
    inserted: int
    updated: int
    unchanged: int
    refused: int
    problems: list[RefusedDocument]


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """Acknowledged deletion.

    Attributes:
        missing: number of ids that no document has.
        note: that shards of a cluster keep the documents until the next publishing, and how to publish; null
            for a collection that was never published.
    """

    sequence: int
    deleted: int
    missing: int = 0
    note: str | None = None


@dataclass(frozen=True, slots=True)
class MetadataResult:
    """Acknowledged change of a document's metadata; `metadata` is what they are now."""

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
    """Values of each field.

    Attributes:
        documents: number of documents that meet the filter.
        facets: values by field, the most frequent first.
    """

    documents: int
    facets: dict[str, list[FacetValue]]


@dataclass(frozen=True, slots=True)
class DocumentPage:
    """Documents by id.

    Attributes:
        next: cursor of the next page; null: this was the last.
    """

    documents: list[Document]
    next: str | None


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of each query over its candidates, best first; zeros behind a query's last candidate.

    Attributes:
        ids: of each query's candidates.
        stamp: what it was computed from; `vjp` wants it back.
        hops: rounds of search.
        temperature: what scores were divided by.
        mixture: m_h, the share of each head; without its excitation.
        mixtures: m_h of each query, of a version whose heads are re-weighted by it; None otherwise.
        context: Σ_d weight(q, d) v_d.
        output: W_O context + b, where the model has an output projection.
        weights: the mixture of the heads' weights; of soft pooling their softmaxes.
        scores: what the candidates are ordered by.
        keys, values: of each candidate, with include "keys", "values"; [batch, heads, candidates, dim] where
            several heads may take different passages of long documents.
        dense, keyword, head_weights: by head, with include "parts".
        slopes: ∂ dense / ∂ query state, with include "slopes" and one round of search.
        memory: part of the scores from past queries, with include "parts" and a model with a query memory.
        candidates: number of documents that share each query's attention; with over "all" more than are
            listed.
        covered_mass: share of the attention over all documents that they hold; an estimate above 20,000.
        note: what to know of the answer: queries without a document in reach, candidates that hold too little
            of the attention; or null.
        draft: id of the draft head that answered; its parent is the stamp's model.
        positions: of each candidate in the state that answered, -1 behind the last, with include "positions".
        texts: title and text of each query's candidates, with include "texts".
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
    memory: Float[np.ndarray, "batch candidates"] | None = None
    candidates: list[int] | None = None
    covered_mass: Float[np.ndarray, " batch"] | None = None
    note: str | None = None
    output: Float[np.ndarray, "batch output_dim"] | None = None
    draft: str | None = None
    positions: Int64[np.ndarray, "batch candidates"] | None = None
    texts: list[list[str]] | None = None
    mixtures: Float[np.ndarray, "batch heads"] | None = None


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of a loss by query states, head's tensors as named in `state_dict`, bias and pooled table."""

    stamp: Stamp
    states: Float[np.ndarray, "batch encoder_dim"]
    head: dict[str, np.ndarray]
    bias: Float[np.ndarray, " positions"] | None = None
    table: Float[np.ndarray, "positions value_dim"] | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """A document that a prediction came from, and its field.

    Attributes:
        weight: its share among the documents that have the field.
    """

    id: str
    weight: float
    value: Any


@dataclass(frozen=True, slots=True)
class FieldPrediction:
    """Prediction for one query; all null if no candidate has the field.

    Attributes:
        mean: mean of numbers, or of each entry of vectors.
        spread: standard deviation around the mean.
        labels: share of each label, largest first; shares sum to 1.
        evidence: documents of largest weight, largest first.
        candidates: number of documents that were pooled.
        without_field: number of documents left out because they lack the field.
        covered_mass: share of the attention over all documents that the candidates hold, with the field or
            without; an estimate above 20,000 documents.
        values: "stored" for the field's values; "learned" where the version learned a value of every
            document, W_O W_V e + b, which documents without the field have too. Labels are then the softmax
            of the pooled values.
    """

    kind: Literal["number", "vector", "label"] | None
    mean: float | list[float] | None
    spread: float | list[float] | None
    labels: dict[str | bool, float] | None
    evidence: list[Evidence]
    candidates: int
    without_field: int
    covered_mass: float = 1.0
    values: Literal["stored", "learned"] = "stored"


@dataclass(frozen=True, slots=True)
class Predictions:
    """One prediction a query.

    Attributes:
        note: what to know of the answer: queries without a document in reach, candidates that hold too little
            of the attention; or null.
    """

    stamp: Stamp
    predictions: list[FieldPrediction]
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """One version of a collection's model.

    Attributes:
        parent: version that it was trained from.
        live: whether it answers when no version is requested.
        record: scores on the gate, training data, seed.
        problem: the part of it that this release no longer serves, so that it cannot be used; or null.
    """

    version: str
    parent: str | None
    live: bool
    record: dict[str, Any]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TriesLeft:
    """Chances that are left on the judged queries that the gate used last.

    Attributes:
        queries: number of these queries.
        refusals: candidates that they have refused since the last that passed, as a mean over the queries.
        left: share of the gate's α that all further candidates together may spend, from 1 down to 0; further
            judged queries raise it.
    """

    queries: int
    refusals: float
    left: float


@dataclass(frozen=True, slots=True)
class Models:
    """The versions of a collection; v0 is the untrained one.

    Attributes:
        live: version that answers.
        tries: what is left of the judged queries for further candidates; null before the first verdict.
    """

    live: str
    models: list[Model]
    tries: TriesLeft | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A long-running operation.

    Attributes:
        kind: "files", "train", "tune", "save", "evaluate", "refresh", "compact" or "migrate".
        state: "queued", "running", "done", "failed", "cancelled" or "interrupted".
        created, started, ended: ISO 8601.
        attempts: number of starts; several after the server was stopped.
        progress: `{stage, done, total, elapsed_s, eta_s}` while it runs.
        result: when done; of train, tune and save `{model, live, reason, verdict, gate, previous}`, where
            promoting `previous` undoes it, of evaluate the report, of refresh `{generation, model, keys}`, of
            compact `{complete, rows, bytes_before, bytes_after, note}`, of migrate
            `{documents, encoded, encoder, models_left_behind, remembered}`, of files `FilesResult`, also
            when it failed after some were stored.
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
class SkippedRecord:
    """A record of a file that is not stored; `line` is null for a part of the file."""

    line: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class FileResult:
    """What became of a file that was sent.

    Attributes:
        name: as it was sent.
        reason: why none of its documents is stored; null if some are.
        documents: number of its documents.
        ids: ids of the first 20 of them.
        inserted, updated, unchanged: how many of them are new, replaced, and as they were.
        deleted: documents of the file as it was sent before that it has no more.
        skipped: records that are not stored.
        problems: the first 20 of them, with their reasons.
    """

    name: str
    reason: str | None = None
    documents: int = 0
    ids: list[str] = field(default_factory=list)
    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    deleted: int = 0
    skipped: int = 0
    problems: list[SkippedRecord] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FilesResult:
    """What became of the files of one request.

    Attributes:
        files: each file, in the order of the request.
        sequence: last operation that searches see.
        inserted, updated, unchanged, deleted: sums over the files.
        left_out: number of files of which no document is stored.
    """

    files: list[FileResult]
    sequence: int
    inserted: int
    updated: int
    unchanged: int
    deleted: int
    left_out: int


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Tasks, the latest first.

    Attributes:
        next: cursor of the next page; null: this was the last.
    """

    tasks: list[Task]
    next: str | None


@dataclass(frozen=True, slots=True)
class ModelAdded:
    """A version that was handed in; it is not live."""

    model: str
    parent: str
    sequence: int


@dataclass(frozen=True, slots=True)
class DraftAdded:
    """A head that was handed in to be asked for a while; it is no version.

    Attributes:
        draft: its id.
        parent: version whose encoder and documents it answers with.
        size_bytes: of its tensors.
        expires_s: seconds after its last use.
    """

    draft: str
    parent: str
    size_bytes: int
    expires_s: float


@dataclass(frozen=True, slots=True)
class MemoryResult:
    """Judged queries that the live version's memory has from now on.

    Attributes:
        model: the version that is live.
        previous: the version that was live before; the same, unless a memory was begun.
        queries: the number of queries.
        judgements: the number of their grades.
        left_out: the number of judgements that could not be used, by reason.
        sequence: of the write; dropping the rows after `sequence` − 1 takes it back.
    """

    model: str
    previous: str
    queries: int
    judgements: int
    left_out: dict[str, int]
    sequence: int


@dataclass(frozen=True, slots=True)
class RowsDropped:
    """Rows of the query memory that were dropped.

    Attributes:
        dropped: the number of rows.
        remaining: the number of rows that stay, besides those that versions were trained with.
        sequence: of the write.
    """

    dropped: int
    remaining: int
    sequence: int


@dataclass(frozen=True, slots=True)
class AliasSet:
    """An alias, its new target and its previous one."""

    alias: str
    collection: str
    previous: str | None


@dataclass(frozen=True, slots=True)
class PromotionResult:
    """The version that answers from now on, and the one that did."""

    model: str
    previous: str
    sequence: int

"""The options of searches and of attention, as both clients and the local engine take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from dsearch.attention_options import AttentionKeywords, SelectionKeywords
from dsearch.search_options import SearchKeywords
from dsearch.types import Purpose, Stamp

Filter: TypeAlias = Mapping[str, Any]
"""What a document's metadata must meet: `{"year": {"gte": 2017}}`, with `and`, `or` and `not`."""


class FindOptions(SearchKeywords, total=False):
    """Options of a search, described by `dsearch.search_options.SearchOptions`, whose defaults apply.

    explore: share of pages on which a coin swaps two documents, for feedback; servers only, as `partial`.
    """

    explore: float


class WayToAttend(AttentionKeywords, SelectionKeywords, total=False):
    """Options of attention, described by `dsearch.attention_options.AttentionOptions`, whose defaults apply.

    filter: condition on the documents' metadata.
    """

    score: str
    filter: Filter | None


class AttendOptions(WayToAttend, total=False):
    """`WayToAttend`, and model: a version; the live one of the purpose when left out."""

    model: str | None
    purpose: Purpose | None


class DifferentiableOptions(AttendOptions, total=False):
    """`AttendOptions`, and dtype: what is computed in; stamp: the state to be asked, from an answer.

    ids: up to 64 ids of documents whose embeddings are the queries, in place of texts and vectors; draft: id
    of a draft head that answers in place of a version (`draft_head`).
    """

    dtype: Literal["float32", "float64"]
    stamp: Stamp | None
    ids: Sequence[str] | None
    draft: str | None


class LearningOptions(TypedDict, total=False):
    """The options that training and tuning share; each is described in `dsearch.jobs`."""

    exclude: Mapping[str, Sequence[str]] | None
    seed: int
    promote: bool
    accept: bool
    risk: Literal["cautious", "balanced", "bold"]
    alpha: float | None
    margin: float


class TuneOptions(LearningOptions, total=False):
    """The options of `dsearch.jobs.TuningJob`. The server has the defaults."""


class SaveOptions(LearningOptions, total=False):
    """The options of `dsearch.jobs.SavingJob`, beside its evidence. The server has the defaults."""

    purpose: Purpose


class TrainOptions(LearningOptions, total=False):
    """The options of `dsearch.jobs.TrainingJob`, where each is described. The server has the defaults."""

    teacher: Mapping[str, Mapping[str, float]] | None
    trusted_keys: Sequence[str] | None
    self_supervised: bool
    source: Literal["feedback"] | None
    scope: Literal["head", "query", "full"]
    encoder_training: Literal["lora", "all"] | None
    encoder_learning_rate: float | None
    objective: str | None
    field: str | None
    null_slot: bool
    heads: int
    query_side: Literal["linear", "low-rank", "mlp"] | None
    epochs: int | None
    learning_rate: float | None
    batch_size: int | None
    negatives: int | None
    precision: Literal["float32", "bfloat16"] | None
    compiled: bool
    tune: bool
    memory: bool


Part = Literal["keys", "values", "parts", "slopes"]

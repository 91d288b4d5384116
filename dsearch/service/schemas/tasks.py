"""Requests that begin tasks, as the OpenAPI document shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import ConfigDict, Field, model_validator

from dsearch.jobs import EvaluationJob, LearningJob, SavingJob, TrainingJob, TuningJob
from dsearch.service.schemas.search import MAX_QUERY_CHARACTERS, KeyKind, Limit, SearchMode, Version
from dsearch.service.wire.declared_fields import options_from, plain_errors
from dsearch.service.wire.requests import RequestModel, allowed, listed
from dsearch.types import TaskState

MAX_JUDGED_QUERIES = 50_000
MAX_REMEMBERED = 1000  # they are encoded before the answer
MAX_SYSTEMS = 8
MAX_EXCLUDED = 1000
MAX_FULL_EPOCHS = 20

_Text = Annotated[str, Field(max_length=MAX_QUERY_CHARACTERS)]
_Id = Annotated[str, Field(min_length=1, max_length=512)]
_Grade = Annotated[float, Field(ge=-1e6, le=1e6)]
_Queries = Annotated[
    dict[_Id, _Text],
    Field(max_length=MAX_JUDGED_QUERIES),
    allowed(
        f"an object of query id → text, at most {MAX_JUDGED_QUERIES}, {MAX_QUERY_CHARACTERS} characters each"
    ),
]
_Judgements = Annotated[
    dict[_Id, dict[_Id, _Grade]],
    Field(max_length=MAX_JUDGED_QUERIES),
    allowed("an object of query id → document id → grade, above 0 for documents that answer the query"),
]
_Flag = Annotated[bool, allowed("true or false")]
_Exclude = Annotated[
    dict[_Id, Annotated[list[_Id], Field(max_length=MAX_EXCLUDED)]],
    Field(max_length=MAX_JUDGED_QUERIES),
    allowed(f"an object of query id → at most {MAX_EXCLUDED} document ids"),
]
_EXAMPLE = {
    "queries": {"q1": "what is a key?", "q2": "what is a value?"},
    "judgements": {"q1": {"a": 1}, "q2": {"b": 2, "a": 0}},
}


class JudgedFields(RequestModel):
    """Queries with judgements of documents."""

    queries: _Queries | None = Field(None, description="query id → text")
    judgements: _Judgements | None = Field(None, description="query id → document id → grade")

    @model_validator(mode="after")
    def _together(self) -> Self:
        if (self.queries is None) != (self.judgements is None):
            raise ValueError("queries and judgements belong together; give both or neither")
        return self


class Learning(JudgedFields):
    """Judged queries, and the options that training and tuning share."""

    exclude: _Exclude | None = Field(None, description="documents that have no part in a query's ranking")

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the task."""
        return self.model_dump(by_alias=True)


@options_from(TrainingJob)
class TrainRequest(Learning):
    """Training data, and options of the training."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [
                _EXAMPLE,
                {"self_supervised": True},
                {"from": "feedback"},
                {"objective": "context", "field": "price"},
            ]
        },
    )

    if TYPE_CHECKING:  # two of the fields that the decorator adds
        scope: str
        epochs: int | None

    teacher: _Judgements | None = Field(None, description="query id → document id → a teacher's score")
    trusted_keys: (
        Annotated[list[_Id], Field(min_length=1, max_length=1000), allowed("1 to 1000 ids of keys")] | None
    ) = Field(None, description="keys whose clicks judge what others' clicks taught; with from feedback")

    @model_validator(mode="after")
    def _affordable(self) -> Self:
        if self.scope == "full" and (self.epochs or 0) > MAX_FULL_EPOCHS:
            raise ValueError(f"scope full has at most {MAX_FULL_EPOCHS} epochs on a server")
        return self


@options_from(TuningJob)
class TuneRequest(Learning):
    """Judgements to tune on, and what the gate asks."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"examples": [_EXAMPLE, {**_EXAMPLE, "exclude": {"q1": ["a"]}}]}
    )


class RememberRequest(RequestModel):
    """Judged queries for the memory of the live version."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [_EXAMPLE]})

    queries: Annotated[_Queries, Field(min_length=1, max_length=MAX_REMEMBERED)] = Field(
        description="query id → text"
    )
    judgements: Annotated[_Judgements, Field(min_length=1, max_length=MAX_REMEMBERED)] = Field(
        description="query id → document id → grade, above 0 for documents that answer the query"
    )
    accept: _Flag = Field(
        False, description="begin a memory with default settings where the live version has none"
    )


class RowsRequest(RequestModel):
    """Rows of the query memory to drop."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"sequence": 1}]})

    sequence: Annotated[int, Field(ge=0), allowed("an integer of at least 0")] = Field(
        description="rows that later operations wrote are dropped"
    )


class EncoderMethod(RequestModel):
    """Method by which an encoder learned."""

    method: Literal["lora", "all"] = "lora"
    rank: Annotated[int, Field(ge=1, le=1024), allowed("an integer from 1 to 1024")] = 16
    alpha: Annotated[int, Field(ge=1, le=4096), allowed("an integer from 1 to 4096")] = 32


_Scores = Annotated[
    list[Annotated[float, Field(allow_inf_nan=False)]],
    Field(max_length=MAX_JUDGED_QUERIES),
    allowed(f"a list of at most {MAX_JUDGED_QUERIES} finite numbers"),
]


_Live = Version | None
_LIVE = Field(
    None,
    description="version that before are scores of: if another one is live by the time of promotion, this "
    "one is kept and not promoted; the one that is live when the request comes if not given",
    examples=["v1"],
)


@options_from(SavingJob)
class SaveRequest(Learning):
    """Evidence for a model that was trained elsewhere, and what the gate asks."""

    training: _Judgements | None = Field(None, description="judgements that it was trained on")
    before: _Scores | None = Field(None, description="score of each held-out example by the live version")
    after: _Scores | None = Field(None, description="score of each by this one; more is better")
    live: _Live = _LIVE
    parent: Version | None = Field(None, description="version that it was trained from; the live one if none")
    record: dict[str, Any] | None = Field(None, description="what should be known of it later")
    encoder: EncoderMethod | None = Field(None, description="of the tensors under query_encoder/")


@options_from(LearningJob)
class JudgeRequest(RequestModel):
    """Scores of examples by the live version and by a kept one, and what the gate asks."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [{"before": [0.1, 0.4, 0.2], "after": [0.3, 0.5, 0.2], "measure": "log-likelihood"}]
        },
    )

    before: _Scores = Field(description="score of each held-out example by the live version")
    after: _Scores = Field(description="score of each by the version of the path; more is better")
    live: _Live = _LIVE
    measure: Annotated[str, Field(min_length=1, max_length=100), allowed("1 to 100 characters")] = Field(
        "score", description="name of the score of an example, for the report"
    )

    @model_validator(mode="after")
    def _in_pairs(self) -> Self:
        with plain_errors():
            SavingJob(before=self.before, after=self.after, measure=self.measure).check()
        return self


class RefreshRequest(RequestModel):
    """Storage options of keys from now on; omitted ones keep their values."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"examples": [{"kind": "HNSW", "recall_target": 0.95}, {}]}
    )

    kind: KeyKind | None = Field(None, description="auto, or one of the kinds that GET …/statistics names")
    recall_target: Annotated[float, Field(gt=0, le=1), allowed("a number above 0, up to 1")] | None = Field(
        None, description="recall@10 that an approximate kind is tuned for"
    )
    memory_bytes: Annotated[int, Field(ge=1), allowed("an integer from 1")] | None = Field(
        None, description="what the keys may take when auto chooses"
    )
    queries: (
        Annotated[
            list[_Text],
            Field(min_length=1, max_length=MAX_JUDGED_QUERIES),
            allowed(f"1 to {MAX_JUDGED_QUERIES} texts, {MAX_QUERY_CHARACTERS} characters each"),
        ]
        | None
    ) = Field(None, description="to tune an approximate kind by; sentences of the documents when not given")

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the task."""
        return self.model_dump(exclude_none=True)


class MigrateRequest(RequestModel):
    """Expected encoder of a migration."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"encoder": "all-mpnet-base-v2"}]})

    encoder: Annotated[str, Field(min_length=1, max_length=500), allowed("a name")] | None = Field(
        None,
        description="what the server's settings must have as `next_encoder` (or as `encoder`, where there is "
        "none); it is compared and nothing else: a request cannot choose an encoder",
    )


class SystemGiven(RequestModel):
    """One way to search."""

    model: Version | None = Field(None, description="a version; the live one when it is not given")
    mode: SearchMode = "hybrid"


class EvaluateRequest(JudgedFields):
    """Judgements to score against, and what to score."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [
                _EXAMPLE,
                {**_EXAMPLE, "systems": [{"model": "v0"}, {"model": "v0", "mode": "dense"}]},
            ]
        },
    )

    model: Version | None = Field(None, description="a trained version; the live one when it is not given")
    systems: Annotated[list[SystemGiven], Field(min_length=1, max_length=MAX_SYSTEMS)] | None = Field(
        None,
        description="what to compare, against the first of them; meaning, words, both and the trained "
        "version when they are not given. With two or more, `comparison` in the result names the queries "
        "that the second wins and loses",
    )
    training: _Judgements | None = Field(
        None,
        description="judgements that were trained on: queries with a document that is relevant there (seen) "
        "and those without (unseen) are then scored apart too",
    )

    @model_validator(mode="after")
    def _check_job(self) -> Self:
        with plain_errors():
            self.job().check()
        return self

    def job(self) -> EvaluationJob:
        """Return the job of this request, as the engine takes it."""
        systems = None if self.systems is None else [system.model_dump() for system in self.systems]
        return EvaluationJob(self.queries or {}, self.judgements or {}, self.model, systems, self.training)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the task."""
        return self.model_dump(by_alias=True)


class TaskParameters(RequestModel):
    """Filter on the list of tasks."""

    limit: Limit = 50
    cursor: Annotated[str, Field(pattern=r"^[0-9]{1,15}$"), allowed("the `next` of an answer")] | None = (
        Field(None, description="`next` of the page before", examples=["173"])
    )
    collection: Annotated[str, Field(max_length=200)] | None = None
    state: Annotated[TaskState, allowed(listed(get_args(TaskState)))] | None = None

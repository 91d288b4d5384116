"""What clients send to have something done that takes long.

What clients get about tasks, as the OpenAPI document shows it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dsearch.hints import Command
from dsearch.service.schemas.search import MAX_QUERY_CHARACTERS, Limit, SearchMode, Version
from dsearch.service.tasks.store import TaskKind, TaskState
from dsearch.service.wire.fields import Given, allowed

MAX_JUDGED_QUERIES = 50_000
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


class Judged(Given):
    """Queries with judgements of documents."""

    queries: _Queries | None = Field(None, description="query id → text")
    judgements: _Judgements | None = Field(None, description="query id → document id → grade")

    @model_validator(mode="after")
    def _together(self) -> Self:
        if (self.queries is None) != (self.judgements is None):
            raise ValueError("queries and judgements belong together; give both or neither")
        return self


class Learning(Judged):
    """What may become of something that is learned, whatever it is learned from."""

    seed: Annotated[int, Field(ge=0, le=2**31), allowed("an integer from 0")] = Field(
        0, description="of every random choice"
    )
    promote: _Flag = Field(True, description="let it answer if it did better on held-out queries")
    accept: _Flag = Field(False, description="let it answer whatever held-out queries say")
    alpha: Annotated[float, Field(gt=0, lt=1), allowed("a number between 0 and 1")] = Field(
        0.05, description="the largest p-value that counts as a gain"
    )
    margin: Annotated[float, Field(ge=0, lt=1), allowed("a number from 0 to below 1")] = Field(
        0.02, description="how far nDCG@10 may fall on seen or unseen documents"
    )

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the task."""
        return self.model_dump(by_alias=True)


class TrainRequest(Learning):
    """What to learn from, and how."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [
                _EXAMPLE,
                {"self_supervised": True},
                {"from": "feedback"},
                {"objective": "value", "field": "price"},
            ]
        },
    )

    self_supervised: _Flag = Field(False, description="learn from the documents alone")
    source: Annotated[Literal["feedback"], allowed("feedback")] | None = Field(
        None,
        alias="from",
        description="learn from people's clicks; judgements, when given, then decide whether it goes live",
    )
    scope: Annotated[Literal["head", "query", "full"], allowed("head, query or full")] = Field(
        "head",
        description="what learns: the head (seconds), the query encoder with it (minutes), or the encoders "
        "of queries and documents (every document is encoded anew; judgements alone)",
    )
    encoder_training: Annotated[Literal["lora", "all"], allowed("lora or all")] | None = Field(
        None, description="how an encoder learns: lora (scope query), or all of its weights (scope full)"
    )
    encoder_learning_rate: (
        Annotated[float, Field(gt=0, lt=0.1), allowed("a number between 0 and 0.1")] | None
    ) = None
    negatives: Annotated[int, Field(ge=0, le=64), allowed("an integer from 0 to 64")] | None = Field(
        None,
        description="of scope full: hard negatives of each query, documents that the index as it learns has "
        "near it and nobody knows for answers; 0 when not given",
    )
    objective: (
        Annotated[
            Literal["listwise", "judged", "in-batch", "marginal", "approx-ndcg", "value"],
            allowed("listwise, judged, in-batch, marginal, approx-ndcg or value"),
        ]
        | None
    ) = None
    field: (
        Annotated[str, Field(min_length=1, max_length=200), allowed("a metadata field, or value")] | None
    ) = Field(
        None,
        description="what the objective value learns to predict, from the documents that have it; "
        "judgements, when given, then only say what becomes of search",
    )
    null_slot: _Flag = Field(
        False,
        description='learn a weight for "nothing fits" from queries whose grades are all 0, in scope head',
    )
    heads: Annotated[int, Field(ge=1, le=64), allowed("an integer from 1 to 64")] = 1
    query_side: Literal["linear", "low-rank", "mlp"] | None = Field(
        None, description="what moves queries; linear for one head and low-rank for several when left out"
    )
    epochs: Annotated[int, Field(ge=1, le=1000), allowed("an integer from 1 to 1000")] | None = None
    learning_rate: Annotated[float, Field(gt=0, lt=1), allowed("a number between 0 and 1")] | None = None
    tune: _Flag = Field(
        True,
        description="choose keyword weight, k1, b and hop strength first; "
        "they may answer where a head may not",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.scope != "full" and self.negatives is not None:
            raise ValueError("negatives are of scope full; leave them out")
        if self.query_side == "linear" and self.heads > 1:
            raise ValueError("query_side linear is of one head; use low-rank or mlp")
        if self.objective == "value" or self.field is not None:
            if self.objective != "value" or self.field is None:
                raise ValueError('"objective": "value" and "field" belong together; give both or neither')
            if self.self_supervised or self.source is not None or self.scope != "head" or self.null_slot:
                raise ValueError(
                    '"objective": "value" learns from documents, in scope head; leave the rest out'
                )
            return self
        if self.scope == "head" and (self.encoder_training or self.encoder_learning_rate):
            raise ValueError("encoder_training and encoder_learning_rate are of scope query or full")
        if self.scope == "full":
            if self.judgements is None or self.self_supervised or self.source is not None:
                raise ValueError('"scope": "full" learns from judgements alone; give them')
            of_heads = self.objective is not None or self.heads != 1 or self.query_side is not None
            if of_heads or (self.epochs or 0) > MAX_FULL_EPOCHS:
                raise ValueError(
                    f'"scope": "full" has no objective, one head, no query_side, and at most '
                    f"{MAX_FULL_EPOCHS} epochs; leave the rest out"
                )
        if self.null_slot and (self.judgements is None or self.source is not None or self.scope != "head"):
            raise ValueError("null_slot learns from judgements, in scope head; give them")
        given = (self.judgements is not None and self.source is None) + self.self_supervised
        if given + (self.source is not None) != 1:
            raise ValueError(
                'give one of: queries with judgements; "self_supervised": true; "from": "feedback"; '
                '"objective": "value" with a "field"'
            )
        return self


class TuneRequest(Learning):
    """Judgements to tune on, and what the gate asks."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"examples": [_EXAMPLE, {**_EXAMPLE, "exclude": {"q1": ["a"]}}]}
    )

    exclude: _Exclude | None = Field(None, description="documents that have no part in a query's ranking")

    @model_validator(mode="after")
    def _given(self) -> Self:
        if not self.judgements:
            raise ValueError("there is no judgement to tune on; give queries and judgements")
        return self


class RefreshRequest(Given):
    """How keys are kept from now on; what is not given stays as it was."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"examples": [{"kind": "HNSW", "recall_target": 0.95}, {}]}
    )

    kind: (
        Annotated[str, Field(min_length=1, max_length=32), allowed("auto, Flat, SQ8, HNSW, IVF or IVFPQ")]
        | None
    ) = Field(None, description="auto, or one of the kinds that GET …/statistics names")
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


class MigrateRequest(Given):
    """What is expected of a migration."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"encoder": "all-mpnet-base-v2"}]})

    encoder: Annotated[str, Field(min_length=1, max_length=500), allowed("a name")] | None = Field(
        None,
        description="what the server's settings must have as `next_encoder` (or as `encoder`, where there is "
        "none); it is compared and nothing else: a request cannot choose an encoder",
    )


class SystemGiven(Given):
    """One way to search."""

    model: Version | None = Field(None, description="a version; the live one when it is not given")
    mode: SearchMode = "hybrid"


class EvaluateRequest(Judged):
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
    def _given(self) -> Self:
        if not self.judgements:
            raise ValueError("there is no judgement to score against; give queries and judgements")
        if self.systems is not None and self.model is not None:
            raise ValueError("model and systems; give the model within systems, or model alone")
        return self

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the task."""
        return self.model_dump(by_alias=True)


class TaskParameters(Given):
    """Which tasks to list."""

    limit: Limit = 50
    cursor: Annotated[str, Field(pattern=r"^[0-9]{1,15}$"), allowed("the `next` of an answer")] | None = (
        Field(None, description="`next` of the page before")
    )
    collection: Annotated[str, Field(max_length=200)] | None = None
    state: Annotated[TaskState, allowed("queued, running, done, failed, cancelled or interrupted")] | None = (
        None
    )


_TASK = {
    "id": "5f0d1c9a0f4b4f7e8f3f5d6c7b8a9012",
    "kind": "train",
    "collection": "papers",
    "state": "running",
    "created": "2025-01-31T12:00:00.000+00:00",
    "started": "2025-01-31T12:00:00.100+00:00",
    "ended": None,
    "attempts": 1,
    "progress": {"stage": "train", "done": 12, "total": 30, "elapsed_s": 3.1, "eta_s": 4.65},
    "result": None,
    "problem": None,
}


class TaskProgress(BaseModel):
    """How far a step is."""

    stage: str
    done: int
    total: int = Field(description="0: not known")
    elapsed_s: float
    eta_s: float | None = Field(description="seconds left of this stage, at the pace so far")


class TaskProblem(BaseModel):
    """Why a task failed or was interrupted."""

    code: str
    detail: str
    hint: Command | None = Field(None, description="the command that does it, run in the server's home")


class TaskAnswer(BaseModel):
    """A task."""

    model_config = ConfigDict(json_schema_extra={"examples": [_TASK]})

    id: str
    kind: TaskKind
    collection: str
    state: TaskState
    created: str
    started: str | None
    ended: str | None
    attempts: int = Field(description="how often it was begun; more than once after the server was stopped")
    progress: TaskProgress | None
    result: dict[str, Any] | None = Field(
        description="of train and tune: model, live, reason, gate; of evaluate: the report; of refresh: "
        "generation, model, keys; of compact: complete, rows, bytes_before, bytes_after; of migrate: "
        "documents, encoded, encoder, models_left_behind"
    )
    problem: TaskProblem | None


class TaskList(BaseModel):
    """Tasks, the latest first."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tasks": [_TASK], "next": None}]})

    tasks: list[TaskAnswer]
    next: str | None = Field(description="the cursor of the next page; null: this was the last")

"""What clients get about tasks, as the OpenAPI document shows it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dsearch.service.task_store import TaskKind, TaskState

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

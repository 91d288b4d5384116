"""The calls that have something done that takes long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Unpack

from dsearch.client import reading
from dsearch.client.answers import Task, TaskPage
from dsearch.client.asking import path_of, question, quoted
from dsearch.client.flow import Flow, Pause, Request, operation
from dsearch.client.options import TrainOptions
from dsearch.errors import Unavailable


class TaskOperations:
    """Training, evaluation, refreshes. In Python `dsearch.training` does it, without a server."""

    @operation
    def train(
        self,
        collection: str,
        *,
        queries: Mapping[str, str] | None = None,
        judgements: Mapping[str, Mapping[str, float]] | None = None,
        self_supervised: bool = False,
        from_feedback: bool = False,
        **options: Unpack[TrainOptions],
    ) -> Flow[Task]:
        """Train a new version, which answers if it is better on held-out queries. `POST …/train`

        Args:
            collection: its name.
            queries: query id → text, with judgements.
            judgements: query id → document id → grade.
            self_supervised: learn from the documents alone, in place of judgements.
            from_feedback: learn from clicks; judgements, when given, then decide whether it goes live.
            options: how.
        """
        asked = {"queries": queries, "judgements": judgements, "self_supervised": self_supervised, **options}
        asked["from"] = "feedback" if from_feedback else None
        answer = yield replace(question(collection, "train", asked), repeatable=False, writes=True)
        return reading.made(Task, reading.content_of(answer))

    @operation
    def evaluate(
        self,
        collection: str,
        queries: Mapping[str, str],
        judgements: Mapping[str, Mapping[str, float]],
        *,
        model: str | None = None,
        systems: Sequence[Mapping[str, str]] | None = None,
        training: Mapping[str, Mapping[str, float]] | None = None,
    ) -> Flow[Task]:
        """Score ways to search on judgements, side by side. `POST …/evaluate`

        Args:
            collection: its name.
            queries: query id → text.
            judgements: query id → document id → grade.
            model: a trained version beside dense, keyword and hybrid; the live one when not given.
            systems: what to compare in their place, such as `[{"model": "v0"}, {"model": "v1"}]`, with
                `"mode"` where it is not hybrid; the second's wins and losses against the first are named.
            training: judgements that were trained on, to score seen and unseen documents apart.
        """
        asked = {
            "queries": queries,
            "judgements": judgements,
            "model": model,
            "systems": systems,
            "training": training,
        }
        answer = yield replace(question(collection, "evaluate", asked), repeatable=False, writes=True)
        return reading.made(Task, reading.content_of(answer))

    @operation
    def refresh(self, collection: str) -> Flow[Task]:
        """Build the index anew, its keys projected by the model that answers. `POST …/refresh`"""
        answer = yield Request("POST", f"{path_of(collection)}/refresh", repeatable=False, writes=True)
        return reading.made(Task, reading.content_of(answer))

    @operation
    def task(self, id: str) -> Flow[Task]:
        """Its state, how far it is, its result. `GET /v1/tasks/{id}`"""
        answer = yield Request("GET", f"/v1/tasks/{quoted(id)}")
        return reading.made(Task, reading.content_of(answer))

    @operation
    def tasks(
        self,
        *,
        collection: str | None = None,
        state: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Flow[TaskPage]:
        """Tasks, the latest first. `GET /v1/tasks`"""
        asked = {"collection": collection, "state": state, "limit": limit, "cursor": cursor}
        given = {name: value for name, value in asked.items() if value is not None}
        answer = yield Request("GET", "/v1/tasks", given)
        return reading.made(TaskPage, reading.content_of(answer))

    @operation
    def cancel_task(self, id: str) -> Flow[Task]:
        """Cancel it; what it had begun is dropped. `DELETE /v1/tasks/{id}`"""
        answer = yield Request("DELETE", f"/v1/tasks/{quoted(id)}", writes=True)
        return reading.made(Task, reading.content_of(answer))

    @operation
    def wait_for_task(
        self,
        id: str,
        *,
        timeout_s: float = 3600.0,
        every_s: float = 0.5,
        on_progress: Callable[[Task], None] | None = None,
    ) -> Flow[Task]:
        """The task when it has ended; look at its `state`. Asks `GET /v1/tasks/{id}` now and then.

        Args:
            id: of the task.
            timeout_s: how long to wait.
            every_s: how long between two questions.
            on_progress: told of the task after each.

        Raises:
            Unavailable: it has not ended in time; it goes on.
        """
        waited_s = 0.0
        while True:
            answer = yield Request("GET", f"/v1/tasks/{quoted(id)}")
            task = reading.made(Task, reading.content_of(answer))
            if on_progress is not None:
                on_progress(task)
            if task.has_ended:
                return task
            if waited_s >= timeout_s:
                raise Unavailable(
                    f"task {id} is {task.state} after {timeout_s:g} s; wait longer, or cancel it"
                )
            yield Pause(every_s)
            waited_s += every_s

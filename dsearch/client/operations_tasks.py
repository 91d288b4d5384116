"""The calls that have something done that takes long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from dsearch.client import reading
from dsearch.client.answers import Task, TaskPage
from dsearch.client.asking import quoted
from dsearch.client.flow import Flow, Request, operation
from dsearch.client.options import TrainOptions
from dsearch.client.task_flow import begun


class TaskOperations:
    """Training and evaluation, which in Python `dsearch.training` does without a server; lists of tasks."""

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
        return (yield from begun(collection, "train", asked))

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
        return (yield from begun(collection, "evaluate", asked))

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

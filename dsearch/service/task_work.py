"""`TaskWork`: how each kind of task is done.

Training, tuning, evaluation and encoding anew run in a process of their own with a bound on its memory, and
indexes are built in one; here only what came of it is registered and shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsearch.engine.maintenance import compact
from dsearch.engine.migrate import Prepared
from dsearch.processes import run_spawned
from dsearch.service.catalogue import Catalogue
from dsearch.service.evaluating import evaluate_job
from dsearch.service.made import read_made
from dsearch.service.opening import OpenEngine
from dsearch.service.task_jobs import prepare_job, train_job, tune_job
from dsearch.service.task_store import Task

READERS_S = 30.0  # a request takes no longer, and no longer holds an older state


@dataclass(frozen=True, slots=True)
class Job:
    """A task at work.

    Attributes:
        task: which.
        request: what it was asked with.
        folder: its own; what an attempt that was stopped left is there.
        tell: takes `Progress` and `Note`.
        cancelled: whether it is to stop.
    """

    task: Task
    request: dict[str, Any]
    folder: Path
    tell: Callable[[Any], None]
    cancelled: Callable[[], bool]

    @property
    def collection(self) -> str:
        """Its name."""
        return self.task.collection


class TaskWork:
    """Does tasks, each to its end.

    Args:
        catalogue: the collections, as requests see them.
        open_engine: opens the home readonly; called in another process, so it has to be picklable.
        memory_bytes: what a task's process may take beyond its libraries; None for no bound.
        device: where training runs.
    """

    def __init__(
        self, catalogue: Catalogue, open_engine: OpenEngine, *, memory_bytes: int | None, device: str
    ):
        self._catalogue, self._open_engine = catalogue, open_engine
        self._memory_bytes, self._device = memory_bytes, device

    def result(self, job: Job) -> dict[str, Any]:
        """What came of it, as JSON.

        Raises:
            DsearchError: whatever the work raises on purpose; Cancelled when `job.cancelled` said so.
        """
        kinds = {
            "train": self._train,
            "tune": self._tune,
            "evaluate": self._evaluate,
            "refresh": self._refresh,
            "compact": self._compact,
            "migrate": self._migrate,
        }
        return kinds[job.task.kind](job)

    def _train(self, job: Job) -> dict[str, Any]:
        from dsearch.training import TOLD_OF_TRAINING

        return self._learned(job, train_job, TOLD_OF_TRAINING)

    def _tune(self, job: Job) -> dict[str, Any]:
        from dsearch.training import TOLD_OF_TUNING

        return self._learned(job, tune_job, TOLD_OF_TUNING)

    def _learned(self, job: Job, compute: Any, told_of_record: tuple[str, ...]) -> dict[str, Any]:
        """Have a head made, keep it, and let it answer if it may."""
        from dsearch.training import register

        request = job.request
        told = self._spawned(
            job, compute, self._open_engine, job.collection, request, job.folder, self._device
        )
        with self._catalogue.using(job.collection) as collection:
            made = read_made(job.folder, told["made"], collection)
            registered = register(
                collection,
                made.head,
                {**told["record"], "task": job.task.id},
                passed=told["passed"],
                reason=told["reason"],
                promote=request["promote"],
                accept=request["accept"],
                parent=told["parent"],
                encoder=made.encoder,
                documents=made.documents,
                lessons=made.lessons,
            )
        return {
            **registered.to_dict(),
            "left_out": told["left_out"],
            **{name: told["record"].get(name) for name in told_of_record},
        }

    def _evaluate(self, job: Job) -> dict[str, Any]:
        return self._spawned(job, evaluate_job, self._open_engine, job.collection, job.request)

    def _refresh(self, job: Job) -> dict[str, Any]:
        with self._catalogue.using(job.collection) as collection:
            number = collection.refresh(job.tell, spawned=True, cancelled=job.cancelled, **job.request)
            keys = collection.describe()["keys"]
            return {"generation": number, "model": collection.live_model, "keys": keys}

    def _compact(self, job: Job) -> dict[str, Any]:
        with self._catalogue.using(job.collection) as collection:
            report = compact(
                collection, job.tell, spawned=True, patience_s=READERS_S, cancelled=job.cancelled
            )
        return report.to_dict()

    def _migrate(self, job: Job) -> dict[str, Any]:
        encoded, started = 0, time.monotonic()
        while True:  # again where too much was written meanwhile
            made = self._spawned(job, prepare_job, self._open_engine, job.collection)
            encoded += made["encoded"]
            prepared = Prepared(made["sequence"], encoded, started)
            if (done := self._catalogue.finish_migration(job.collection, prepared)) is not None:
                return done.to_dict()

    def _spawned(self, job: Job, compute: Any, *arguments: Any) -> dict[str, Any]:
        return run_spawned(
            compute,
            *arguments,
            on_progress=job.tell,
            cancelled=job.cancelled,
            memory_bytes=self._memory_bytes,
        )

"""Long-running operations: training, tuning, evaluation, maintenance. Each call begins a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from math import inf
from typing import Any, Unpack

from dsearch.client import wire
from dsearch.client.files import GivenFiles, form_of, named_files
from dsearch.client.flow import TENSORS, Flow, Pause, Request, operation
from dsearch.client.operations.models import ModelOperations
from dsearch.client.uploads import (
    AnyEvidence,
    TrainedEncoder,
    TrainedLayer,
    clean_up,
    evidence_by,
    kept_version,
    model_file,
    savable_layer,
    upload_of,
    verdict_options,
)
from dsearch.client.wire import path_of, question, quoted
from dsearch.errors import Unavailable
from dsearch.jobs import ExampleScores, LearningOptions, SaveOptions, TrainOptions, TuneOptions
from dsearch.results import Models, Task, TaskPage


class TaskOperations:
    """The calls that begin tasks, and those about them. In this process a task ends with its call."""

    @operation
    def add_files(self, collection: str, files: GivenFiles) -> Flow[Task]:
        """Read files as `dsearch index` reads them, and store them as documents. `POST …/files`

        The task's result (`FilesResult`) names each file with its documents, or why it has none. A file of
        the same name as one that was sent before replaces it.

        Args:
            collection: its name.
            files: paths, which are sent under the names of the files; or names with paths or bytes, such as
                `{"notes/a.md": "a.md", "b.txt": b"text"}`. A server takes 1000 files and 256 MiB in one call.
        """
        with form_of(named_files(files)) as (form, content_type):
            path = path_of(collection, "files")
            answer = yield Request("POST", path, {}, form, content_type, repeatable=False, writes=True)
        return wire.parse(Task, wire.content_of(answer))

    @operation
    def tune(
        self,
        collection: str,
        queries: Mapping[str, str],
        judgements: Mapping[str, Mapping[str, float]],
        **options: Unpack[TuneOptions],
    ) -> Flow[Task]:
        """Choose keyword weight, k1 and b, and hop strength on judgements. `POST …/tune`

        Args:
            collection: its name.
            queries: query id → text; a few dozen suffice.
            judgements: query id → document id → grade.
            options: how.
        """
        body = {"queries": queries, "judgements": judgements, **options}
        return (yield from begun(collection, "tune", body))

    @operation
    def refresh(
        self,
        collection: str,
        *,
        kind: str | None = None,
        recall_target: float | None = None,
        memory_bytes: int | None = None,
        queries: Sequence[str] | None = None,
    ) -> Flow[Task]:
        """Rebuild the index, its keys projected by the live model. `POST …/refresh`

        What is None stays as it was.

        Args:
            collection: its name.
            kind: how keys are kept from now on: "auto", "Flat", "SQ8", "HNSW", "IVF", …
            recall_target: recall@10 that an approximate kind is tuned for.
            memory_bytes: what the keys may take when "auto" chooses.
            queries: texts to tune an approximate kind by; sentences of the documents when None.
        """
        body = {
            "kind": kind,
            "recall_target": recall_target,
            "memory_bytes": memory_bytes,
            "queries": None if queries is None else list(queries),
        }
        return (yield from begun(collection, "refresh", body))

    @operation
    def compact(self, collection: str) -> Flow[Task]:
        """Compact the files, and make deleted and replaced data unreadable. `POST …/compact`

        `complete` in the task's result says whether nothing of it is left in any file; `note` what to do
        about releases that shards of a cluster answer with.
        """
        return (yield from begun(collection, "compact"))

    @operation
    def migrate(self, collection: str, *, encoder: str | None = None) -> Flow[Task]:
        """Encode a collection with the next encoder, and switch when that is done. `POST …/migrate`

        Which encoder that is the settings of the server say (`next_encoder`, else its own).

        Args:
            collection: its name.
            encoder: what it must be; it is compared and chooses nothing.
        """
        return (yield from begun(collection, "migrate", {"encoder": encoder}))

    @operation
    def task(self, id: str) -> Flow[Task]:
        """Return a task: its state, progress and result. `GET /v1/tasks/{id}`"""
        answer = yield Request("GET", f"/v1/tasks/{quoted(id)}")
        return wire.parse(Task, wire.content_of(answer))

    @operation
    def wait_for_task(
        self,
        id: str,
        *,
        timeout_s: float = 3600.0,
        every_s: float = 0.5,
        on_progress: Callable[[Task], None] | None = None,
    ) -> Flow[Task]:
        """Wait for the end of a task and return it; look at its `state`. Polls `GET /v1/tasks/{id}`.

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
            task = wire.parse(Task, wire.content_of(answer))
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

    @operation
    def train(
        self,
        collection: str,
        *,
        queries: Mapping[str, str] | None = None,
        judgements: Mapping[str, Mapping[str, float]] | None = None,
        **options: Unpack[TrainOptions],
    ) -> Flow[Task]:
        """Train a new version, and promote it if it is better on held-out queries. `POST …/train`

        Args:
            collection: its name.
            queries: query id → text, with judgements.
            judgements: query id → document id → grade.
            options: what else to learn from, and how: see `dsearch.jobs.TrainingJob`.
        """
        body: dict[str, Any] = {"queries": queries, "judgements": judgements, **options}
        body["from"] = body.pop("source", None)
        return (yield from begun(collection, "train", body))

    @operation
    def save_model(
        self,
        collection: str,
        layer: TrainedLayer,
        *,
        evidence: AnyEvidence = None,
        measure: str | None = None,
        encoder: TrainedEncoder = None,
        parent: str | None = None,
        record: Mapping[str, Any] | None = None,
        **options: Unpack[SaveOptions],
    ) -> Flow[Task]:
        """Judge what was trained here, and promote it if evidence shows it is better. `POST …/models/save`

        Args:
            collection: its name.
            layer: a trained layer (also inside of `AveragedModel` and the like), its head, or the head's
                tensors.
            evidence: held-out judged queries (`JudgedQueries`), scores by both versions (`ExampleScores`), or
                a function that scores held-out examples by a layer, one number each, more is better: it is
                called here, with the live version's layer and with this one. With encode_documents the call
                waits until the server has encoded them, and then scores and `judge_model` decide. None: the
                version is kept and does not answer.
            measure: name of the function's score, for the report.
            encoder: query encoder that learned with it; that of the layer when None.
            parent: version that it was trained from; that of the layer, else the live one, when None.
            record: what should be known of it later, as JSON.
            options: see `dsearch.jobs.SavingJob`.
        """
        layer = savable_layer(layer)
        upload, live = upload_of(layer, encoder, parent), ""
        if callable(evidence):
            answer = yield Request("GET", path_of(collection, "models"))
            live = wire.parse(Models, wire.content_of(answer)).live
        pending = kept_version(layer, evidence, measure, options)
        if pending is not None:
            before = pending.scores_of_live(live)
            without: SaveOptions = {**options, "promote": False, "accept": False}
            task = yield from TaskOperations.save_model(
                self, collection, layer, encoder=encoder, parent=parent, record=record, **without
            )
            task = yield from TaskOperations.wait_for_task(self, task.id, timeout_s=inf)
            if task.state != "done" or task.result is None:
                return task
            version = task.result["model"]
            try:
                scores = ExampleScores(before, pending.scores(version), pending.measure, live)
            except BaseException:  # nobody else knows of the version
                yield from ModelOperations.delete_model(self, collection, version)
                raise
            gate = verdict_options(options)
            return (yield from TaskOperations.judge_model(self, collection, version, scores, **gate))
        evidence_report = evidence_by(layer, evidence, measure, lambda: live)
        with model_file(upload, evidence_report, record, options) as body:
            path = path_of(collection, "models", "save")
            answer = yield Request("POST", path, {}, body, TENSORS, repeatable=False, writes=True)
        clean_up(layer)
        return wire.parse(Task, wire.content_of(answer))

    @operation
    def judge_model(
        self, collection: str, version: str, evidence: ExampleScores, **options: Unpack[LearningOptions]
    ) -> Flow[Task]:
        """Judge a version that was kept without a verdict. `POST …/models/{version}/judge`

        Args:
            collection: its name.
            version: one that does not answer and was not judged before.
            evidence: scores of held-out examples by the live version and by this one. It is promoted in place
                of that live version alone: if another one became live meanwhile, it can be judged again.
            options: promote, accept, risk, alpha, margin and seed: see `dsearch.jobs.SavingJob`.
        """
        return (
            yield from begun(collection, f"models/{quoted(version)}/judge", {**asdict(evidence), **options})
        )

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
        body = {
            "queries": queries,
            "judgements": judgements,
            "model": model,
            "systems": systems,
            "training": training,
        }
        return (yield from begun(collection, "evaluate", body))

    @operation
    def tasks(
        self,
        *,
        collection: str | None = None,
        state: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Flow[TaskPage]:
        """List tasks, the latest first. `GET /v1/tasks`"""
        parameters = {"collection": collection, "state": state, "limit": limit, "cursor": cursor}
        present = {name: value for name, value in parameters.items() if value is not None}
        answer = yield Request("GET", "/v1/tasks", present)
        return wire.parse(TaskPage, wire.content_of(answer))

    @operation
    def cancel_task(self, id: str) -> Flow[Task]:
        """Cancel a task; its partial work is dropped. `DELETE /v1/tasks/{id}`"""
        answer = yield Request("DELETE", f"/v1/tasks/{quoted(id)}", writes=True)
        return wire.parse(Task, wire.content_of(answer))


def begun(collection: str, route: str, body: Mapping[str, Any] | None = None) -> Flow[Task]:
    """The task that a POST begins; sent once, for a second one would begin another.

    Args:
        collection: its name.
        route: below the collection.
        body: the body, of which what is None is left out; None: there is no body.
    """
    posted = Request("POST", path_of(collection, route))
    if body is not None:
        posted = question(collection, route, body)
    answer = yield replace(posted, repeatable=False, writes=True)
    return wire.parse(Task, wire.content_of(answer))

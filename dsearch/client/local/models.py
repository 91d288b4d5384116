"""Training, upkeep and models of collections by an engine in this process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Unpack, get_args

from dsearch import results
from dsearch.client.files import GivenFiles, files_on_disk, named_files
from dsearch.client.uploads import (
    AnyEvidence,
    TrainedEncoder,
    TrainedLayer,
    clean_up,
    evidence_by,
    is_search_layer,
    kept_version,
    layer_head,
    savable_layer,
    upload_of,
    verdict_options,
)
from dsearch.client.wire import head_file
from dsearch.engine import Collection, SearchEngine, calls
from dsearch.engine.files import FilesNotStored, store_files
from dsearch.engine.maintenance.compact import compact
from dsearch.engine.options import KeyOptions
from dsearch.errors import Cancelled, Conflict, DsearchError, InvalidRequest, NotFound
from dsearch.jobs import (
    EvaluationJob,
    ExampleScores,
    LearningOptions,
    SaveOptions,
    SavingJob,
    TrainingJob,
    TrainOptions,
    TuneOptions,
    TuningJob,
)
from dsearch.results import Task, TaskPage
from dsearch.types import Progress, TaskState

if TYPE_CHECKING:
    from dsearch.training import Observer


MOST_TASKS = 1000  # of a page, as a server has it


class LocalUpkeep:
    """The calls that begin tasks; each is described in `Client`. A task has ended when its call returns."""

    engine: SearchEngine
    observer: Observer | None
    device: str
    _tasks: dict[str, Task]

    def add_files(self, collection: str, files: GivenFiles) -> Task:
        """Read files as `dsearch index` reads them, and store them as documents."""
        given = named_files(files)
        self.engine.collection(collection).store.require_writable()

        def work(opened: Collection) -> dict[str, Any]:
            with files_on_disk(given) as placed:
                return asdict(store_files(lambda: nullcontext(opened), placed))

        return self._done("files", collection, work)

    def train(
        self,
        collection: str,
        *,
        queries: Mapping[str, str] | None = None,
        judgements: Mapping[str, Mapping[str, float]] | None = None,
        **options: Unpack[TrainOptions],
    ) -> Task:
        """Train a new version, which answers if it is better on held-out queries."""
        job = TrainingJob(queries=queries, judgements=judgements, **options)
        job.check()
        from dsearch.training import run_training

        def work(opened: Collection) -> dict[str, Any]:
            learned = run_training(opened, job, self.observer, device=self.device)
            return learned.summary(learned.register(opened, job))

        return self._done("train", collection, work)

    def tune(
        self,
        collection: str,
        queries: Mapping[str, str],
        judgements: Mapping[str, Mapping[str, float]],
        **options: Unpack[TuneOptions],
    ) -> Task:
        """Choose keyword weight, k1 and b, and hop strength on judgements."""
        job = TuningJob(queries=queries, judgements=judgements, **options)
        job.check()
        from dsearch.training import run_tuning

        def work(opened: Collection) -> dict[str, Any]:
            learned = run_tuning(opened, job, self.observer)
            return learned.summary(learned.register(opened, job))

        return self._done("tune", collection, work)

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
    ) -> Task:
        """Judge what was trained here, and promote it if evidence shows that it is better."""
        from dsearch.training import save_model, summary

        opened, layer = self.engine.collection(collection), savable_layer(layer)
        upload = upload_of(layer, encoder, parent)
        # A function scores the documents that are encoded in the same call.
        alone = callable(evidence) and bool(options.get("encode_documents")) and is_search_layer(layer)
        pending = None if alone else kept_version(layer, evidence, measure, options)
        if pending is not None:
            before = pending.scores_of_live(live := opened.live_model)
            without: SaveOptions = {**options, "promote": False, "accept": False}
            task = self.save_model(
                collection, layer, encoder=encoder, parent=parent, record=record, **without
            )
            if task.result is None:
                return task
            version = task.result["model"]
            try:
                scores = ExampleScores(before, pending.scores(version), pending.measure, live)
            except BaseException:  # nobody else knows of the version
                self.engine.collection(collection).delete_model(version)
                raise
            return self.judge_model(collection, version, scores, **verdict_options(options))
        evidence_report: Any = evidence
        if not alone:
            evidence_report = evidence_by(layer, evidence, measure, lambda: opened.live_model)
        trained: Any = layer if alone else layer_head(layer, upload.head)

        def work(opened: Collection) -> dict[str, Any]:
            saved = save_model(
                opened,
                trained,
                evidence=evidence_report,
                measure=measure if alone else None,
                encoder=upload.encoder,
                parent=upload.parent,
                record=record,
                observer=self.observer,
                **options,
            )
            saved_record = opened.store.model(saved.version).record
            return summary(saved, saved_record, saved_record["left_out"])

        task = self._done("save", collection, work)
        clean_up(layer)
        return task

    def judge_model(
        self, collection: str, version: str, evidence: ExampleScores, **options: Unpack[LearningOptions]
    ) -> Task:
        """Judge a version that was kept without a verdict."""
        from dsearch.training import judge_version, summary

        job = SavingJob(**asdict(evidence), **options)
        job.check()

        def work(opened: Collection) -> dict[str, Any]:
            judged = judge_version(opened, version, job)
            return summary(judged, opened.store.model(version).record, {})

        return self._done("save", collection, work)

    def evaluate(
        self,
        collection: str,
        queries: Mapping[str, str],
        judgements: Mapping[str, Mapping[str, float]],
        *,
        model: str | None = None,
        systems: Sequence[Mapping[str, str]] | None = None,
        training: Mapping[str, Mapping[str, float]] | None = None,
    ) -> Task:
        """Score ways to search on judgements, side by side."""
        from dsearch.training import run_evaluation

        job = EvaluationJob(queries, judgements, model=model, systems=systems, training=training)
        job.check()
        return self._done("evaluate", collection, lambda opened: run_evaluation(opened, job, self.observer))

    def refresh(
        self,
        collection: str,
        *,
        kind: str | None = None,
        recall_target: float | None = None,
        memory_bytes: int | None = None,
        queries: Sequence[str] | None = None,
    ) -> Task:
        """Build the index anew, its keys projected by the model that answers."""
        store = self.engine.collection(collection).store
        KeyOptions.of(store).changed(kind, recall_target, memory_bytes)  # refused at once, as by a server

        def work(opened: Collection) -> dict[str, Any]:
            number = opened.refresh(
                self._on_progress(),
                kind=kind,
                recall_target=recall_target,
                memory_bytes=memory_bytes,
                queries=queries,
            )
            return {"generation": number, "model": opened.live_model, "keys": opened.describe().keys}

        return self._done("refresh", collection, work)

    def compact(self, collection: str) -> Task:
        """Make the files small, and what was deleted or replaced unreadable."""

        def work(opened: Collection) -> dict[str, Any]:
            return compact(opened, self._on_progress()).to_dict()

        return self._done("compact", collection, work)

    def migrate(self, collection: str, *, encoder: str | None = None) -> Task:
        """Encode a collection anew by the next encoder, and switch when that is done."""
        encoder_name = self.engine.next_encoder.identity.name
        self.engine.collection(collection)
        if encoder is not None and encoder != encoder_name:
            raise Conflict(
                f"encoder={encoder!r}: this engine moves collections to {encoder_name!r}; open another"
            )

        def work(_: Collection) -> dict[str, Any]:
            return self.engine.migrate(collection, on_progress=self._on_progress()).to_dict()

        return self._done("migrate", collection, work)

    def task(self, id: str) -> Task:
        """A task of this engine, which has ended."""
        if id not in self._tasks:
            error = NotFound(f"no task {id[:80]!r} of this engine")
            error.code = "task_not_found"  # as a server says it
            raise error
        return self._tasks[id]

    def tasks(
        self,
        *,
        collection: str | None = None,
        state: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> TaskPage:
        """Tasks of this engine, the latest first."""
        every = [
            task
            for task in reversed(self._tasks.values())
            if collection in (None, task.collection) and state in (None, task.state)
        ]
        if cursor is not None and not (cursor.isascii() and cursor.isdigit()):
            raise InvalidRequest(f"cursor={cursor[:80]!r}; use the `next` of an answer")
        if state not in (None, *get_args(TaskState)):
            raise InvalidRequest(f"state={state!r}; use one of {', '.join(get_args(TaskState))}")
        if not 1 <= limit <= MOST_TASKS:
            raise InvalidRequest(f"limit={limit}; use an integer from 1 to {MOST_TASKS}")
        first = 0 if cursor is None else int(cursor)
        rest = len(every) - first - limit
        return TaskPage(every[first : first + limit], str(first + limit) if rest > 0 else None)

    def cancel_task(self, id: str) -> Task:
        """The task, which has ended and stays as it is; an observer stops one that runs."""
        return self.task(id)

    def wait_for_task(
        self,
        id: str,
        *,
        timeout_s: float = 3600.0,
        every_s: float = 0.5,
        on_progress: Callable[[Task], None] | None = None,
    ) -> Task:
        """The task, which has ended; look at its `state`."""
        task = self.task(id)
        if on_progress is not None:
            on_progress(task)
        return task

    def _on_progress(self) -> Callable[[Progress], None] | None:
        return None if self.observer is None else self.observer.progress

    def _done(self, kind: str, name: str, work: Callable[[Collection], dict[str, Any]]) -> Task:
        opened = self.engine.collection(name)
        begun, result, problem, state = _now(), None, None, "done"
        try:
            result = work(opened)
        except Cancelled:
            state = "cancelled"
        except DsearchError as error:
            problem, state = error.to_dict(), "failed"
            result = asdict(error.report) if isinstance(error, FilesNotStored) else None
        id = uuid.uuid4().hex
        task = Task(id, kind, name, state, begun, begun, _now(), 1, None, result, problem)
        self._tasks[id] = task
        return task


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class LocalModels:
    """The calls about models; each is described in `Client`."""

    engine: SearchEngine

    def models(self, collection: str) -> results.Models:
        """Every version with what is known of it; v0 is the untrained one."""
        return calls.list_models(self.engine.collection(collection))

    def promote(self, collection: str, version: str) -> results.PromotionResult:
        """Let a version answer from now on; to undo it promote `previous`."""
        return calls.promote(self.engine.collection(collection), version)

    def rollback(self, collection: str) -> results.PromotionResult:
        """Let the version answer again that did before the live one."""
        return calls.rollback(self.engine.collection(collection))

    def rollback_rows(self, collection: str, sequence: int) -> results.RowsDropped:
        """Drop the rows of the query memory that later operations wrote."""
        return calls.rollback_rows(self.engine.collection(collection), sequence)

    def remember(
        self,
        collection: str,
        queries: Mapping[str, str],
        judgements: Mapping[str, Mapping[str, float]],
        *,
        accept: bool = False,
    ) -> results.MemoryResult:
        """Add judged queries to the live version's memory, without training."""
        from dsearch.training import remember

        return remember(self.engine.collection(collection), queries, judgements, accept=accept)

    def delete_model(self, collection: str, version: str) -> None:
        """Delete a version that does not answer; what was trained from it goes on."""
        self.engine.collection(collection).delete_model(version)

    def head(self, collection: str, version: str) -> dict[str, Any]:
        """The tensors of a version's head, as NumPy arrays by name."""
        from dsearch.engine import head_tensors

        tensors = head_tensors(self.engine.collection(collection).head(version))
        return {name: tensor.numpy().copy() for name, tensor in tensors.items()}

    def draft_head(
        self, collection: str, tensors: Mapping[str, Any], *, parent: str | None = None
    ) -> results.DraftAdded:
        """Keep a head for a while, to attend by it with `draft=…`; it is no version."""
        return calls.add_draft(self.engine.collection(collection), head_file(tensors, None), parent)

    def draft_tensors(self, collection: str, draft: str) -> dict[str, Any]:
        """The tensors of a draft head, as NumPy arrays by name."""
        from dsearch.engine import head_tensors

        tensors = head_tensors(self.engine.collection(collection).drafts.get(draft, "").head)
        return {name: tensor.numpy().copy() for name, tensor in tensors.items()}

    def drop_draft(self, collection: str, draft: str) -> None:
        """Forget a draft head."""
        calls.drop_draft(self.engine.collection(collection), draft)

    def add_model(
        self,
        collection: str,
        tensors: Mapping[str, Any],
        *,
        parent: str | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> results.ModelAdded:
        """Keep a head that was trained elsewhere as a new version, which is not live."""
        return calls.add_head(self.engine.collection(collection), head_file(tensors, record), parent)

"""Training, evaluation and upkeep by an engine in this process; see `dsearch/operations/tasks.py`.

A task has ended when its call returns.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, get_args

from dsearch import operations
from dsearch.client.local.engine import handles
from dsearch.client.uploads import (
    clean_up,
    evidence_by,
    files_on_disk,
    is_search_layer,
    kept_version,
    layer_head,
    named_files,
    savable_layer,
    upload_of,
    verdict_options,
)
from dsearch.engine import Collection
from dsearch.engine.files import FilesNotStored, store_files
from dsearch.engine.maintenance.compact import compact as compact_collection
from dsearch.engine.options import KeyOptions
from dsearch.errors import Cancelled, Conflict, DsearchError, InvalidRequest, NotFound
from dsearch.jobs import EvaluationJob, ExampleScores, SavingJob, TrainingJob, TuningJob
from dsearch.results import Task, TaskPage
from dsearch.types import Progress, TaskState

if TYPE_CHECKING:
    from dsearch.client.local.engine import LocalEngine

MOST_TASKS = 1000  # of a page, as a server has it
Work = Callable[[Collection], dict[str, Any]]

# ---- calls that begin tasks


@handles(operations.AddFiles)
def add_files(local: LocalEngine, call: operations.AddFiles) -> Task:
    given = named_files(call.files)
    local.engine.collection(call.collection).store.require_writable()

    def work(opened: Collection) -> dict[str, Any]:
        with files_on_disk(given) as placed:
            return asdict(store_files(lambda: nullcontext(opened), placed))

    return ended_task(local, "files", call.collection, work)


@handles(operations.Train)
def train(local: LocalEngine, call: operations.Train) -> Task:
    job = TrainingJob(queries=call.queries, judgements=call.judgements, **call.options)
    job.check()
    from dsearch.training import run_training

    def work(opened: Collection) -> dict[str, Any]:
        learned = run_training(opened, job, local.observer, device=local.device)
        return learned.summary(learned.register(opened, job))

    return ended_task(local, "train", call.collection, work)


@handles(operations.Tune)
def tune(local: LocalEngine, call: operations.Tune) -> Task:
    job = TuningJob(queries=call.queries, judgements=call.judgements, **call.options)
    job.check()
    from dsearch.training import run_tuning

    def work(opened: Collection) -> dict[str, Any]:
        learned = run_tuning(opened, job, local.observer)
        return learned.summary(learned.register(opened, job))

    return ended_task(local, "tune", call.collection, work)


@handles(operations.SaveModel)
def save_model(local: LocalEngine, call: operations.SaveModel) -> Task:
    from dsearch.training import save_model, summary

    opened, layer, evidence = (
        local.engine.collection(call.collection),
        savable_layer(call.layer),
        call.evidence,
    )
    upload = upload_of(layer, call.encoder, call.parent)
    # A function scores the documents that are encoded in the same call.
    scored_here = callable(evidence) and bool(call.options.get("encode_documents")) and is_search_layer(layer)
    pending = None if scored_here else kept_version(layer, call.evidence, call.measure, call.options)
    if pending is not None:
        before = pending.scores_of_live(live := opened.live_model)
        kept = {**call.options, "promote": False, "accept": False}
        task = local.run(replace(call, layer=layer, evidence=None, measure=None, options=kept))
        if task.result is None:
            return task
        version = task.result["model"]
        try:
            scores = ExampleScores(before, pending.scores(version), pending.measure, live)
        except BaseException:  # nobody else knows of the version
            local.engine.collection(call.collection).delete_model(version)
            raise
        verdict = verdict_options(call.options)
        return local.run(operations.JudgeModel(call.collection, version, scores, options=verdict))
    report: Any = evidence
    if not scored_here:
        report = evidence_by(layer, call.evidence, call.measure, lambda: opened.live_model)
    trained: Any = layer if scored_here else layer_head(layer, upload.head)

    def work(opened: Collection) -> dict[str, Any]:
        saved = save_model(
            opened,
            trained,
            evidence=report,
            measure=call.measure if scored_here else None,
            encoder=upload.encoder,
            parent=upload.parent,
            record=call.record,
            observer=local.observer,
            **call.options,
        )
        saved_record = opened.store.model(saved.version).record
        return summary(saved, saved_record, saved_record["left_out"])

    task = ended_task(local, "save", call.collection, work)
    clean_up(layer)
    return task


@handles(operations.JudgeModel)
def judge_model(local: LocalEngine, call: operations.JudgeModel) -> Task:
    from dsearch.training import judge_version, summary

    job = SavingJob(**asdict(call.evidence), **call.options)
    job.check()

    def work(opened: Collection) -> dict[str, Any]:
        judged = judge_version(opened, call.version, job)
        return summary(judged, opened.store.model(call.version).record, {})

    return ended_task(local, "save", call.collection, work)


@handles(operations.Evaluate)
def evaluate(local: LocalEngine, call: operations.Evaluate) -> Task:
    from dsearch.training import run_evaluation

    job = EvaluationJob(
        call.queries, call.judgements, model=call.model, systems=call.systems, training=call.training
    )
    job.check()
    return ended_task(
        local, "evaluate", call.collection, lambda opened: run_evaluation(opened, job, local.observer)
    )


@handles(operations.Refresh)
def refresh(local: LocalEngine, call: operations.Refresh) -> Task:
    keys: dict[str, Any] = {
        "kind": call.kind,
        "recall_target": call.recall_target,
        "memory_bytes": call.memory_bytes,
    }
    KeyOptions.of(local.engine.collection(call.collection).store).changed(*keys.values())  # refused at once

    def work(opened: Collection) -> dict[str, Any]:
        number = opened.refresh(_on_progress(local), **keys, queries=call.queries)
        return {"generation": number, "model": opened.live_model, "keys": opened.describe().keys}

    return ended_task(local, "refresh", call.collection, work)


@handles(operations.Compact)
def compact(local: LocalEngine, call: operations.Compact) -> Task:
    return ended_task(
        local,
        "compact",
        call.collection,
        lambda opened: compact_collection(opened, _on_progress(local)).to_dict(),
    )


@handles(operations.Migrate)
def migrate(local: LocalEngine, call: operations.Migrate) -> Task:
    encoder_name = local.engine.next_encoder.identity.name
    local.engine.collection(call.collection)
    if call.encoder is not None and call.encoder != encoder_name:
        raise Conflict(
            f"encoder={call.encoder!r}: this engine moves collections to {encoder_name!r}; open another"
        )
    return ended_task(
        local,
        "migrate",
        call.collection,
        lambda _: local.engine.migrate(call.collection, on_progress=_on_progress(local)).to_dict(),
    )


def _on_progress(local: LocalEngine) -> Callable[[Progress], None] | None:
    return None if local.observer is None else local.observer.progress


def ended_task(local: LocalEngine, kind: str, name: str, work: Work) -> Task:
    opened = local.engine.collection(name)
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
    local.ended_tasks[id] = task
    return task


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


# ---- calls about tasks


@handles(operations.CancelTask)
def cancel_task(local: LocalEngine, call: operations.CancelTask) -> Task:
    return local.task(call.id)  # it has ended and stays as it is; an observer stops one that runs


@handles(operations.ReadTask)
def read_task(local: LocalEngine, call: operations.ReadTask) -> Task:
    if call.id not in local.ended_tasks:
        error = NotFound(f"no task {call.id[:80]!r} of this engine")
        error.code = "task_not_found"  # as a server says it
        raise error
    return local.ended_tasks[call.id]


@handles(operations.WaitForTask)
def wait_for_task(local: LocalEngine, call: operations.WaitForTask) -> Task:
    task = local.task(call.id)
    if call.on_progress is not None:
        call.on_progress(task)
    return task


@handles(operations.ListTasks)
def list_tasks(local: LocalEngine, call: operations.ListTasks) -> TaskPage:
    every = [
        task
        for task in reversed(local.ended_tasks.values())
        if call.collection in (None, task.collection) and call.state in (None, task.state)
    ]
    cursor, states = call.cursor, get_args(TaskState)
    if cursor is not None and not (cursor.isascii() and cursor.isdigit()):
        raise InvalidRequest(f"cursor={cursor[:80]!r}; use the `next` of an answer")
    if call.state not in (None, *states):
        raise InvalidRequest(f"state={call.state!r}; use one of {', '.join(states)}")
    if not 1 <= call.limit <= MOST_TASKS:
        raise InvalidRequest(f"limit={call.limit}; use an integer from 1 to {MOST_TASKS}")
    first = 0 if cursor is None else int(cursor)
    rest = len(every) - first - call.limit
    return TaskPage(every[first : first + call.limit], str(first + call.limit) if rest > 0 else None)

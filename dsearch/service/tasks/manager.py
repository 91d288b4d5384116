"""`Tasks` runs requested tasks one after the other; `TaskWork` implements each kind of task.

Files that become documents have a thread of their own: they do not wait for the end of a training.

A task that a server shutdown stops is started again with the server: training continues from its last
checkpoint. A task that was running when the server died is tried once more, and then abandoned.

Training, tuning, evaluation and re-encoding run in a process of their own with a bound on its memory, and
indexes are built in one; this process only registers and shows the results.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dsearch.corpus.sent import SentFile
from dsearch.engine import SearchEngine
from dsearch.engine.files import FilesNotStored, store_files
from dsearch.engine.maintenance.compact import compact
from dsearch.engine.maintenance.migrate import PreparedMigration
from dsearch.errors import (
    Cancelled,
    Conflict,
    CorruptData,
    DsearchError,
    UnsupportedFormat,
    amount,
)
from dsearch.index.durable import FULL, disk_error
from dsearch.processes import run_spawned
from dsearch.results import FilesResult
from dsearch.service.collections import Catalogue
from dsearch.service.errors import NotReady, Overloaded, problem_members, public_encoder, without_home
from dsearch.service.tasks.jobs import (
    OpenEngine,
    TaskNote,
    evaluate_job,
    judge_job,
    prepare_job,
    save_job,
    train_job,
    tune_job,
)
from dsearch.service.tasks.results import register_learned
from dsearch.service.tasks.store import KINDS, StoredTask, TaskEvent, TaskKind, TaskStore
from dsearch.service.tasks.uploads import MAX_BYTES, TaskUploads
from dsearch.types import Progress

QUEUED = 32  # at most
FOLDER_NAME = ".tasks"
LANES: tuple[tuple[TaskKind, ...], ...] = (("files",), tuple(kind for kind in KINDS if kind != "files"))
"""Kinds of tasks that run one after the other, each lane beside the others."""
_ATTEMPTS = 2
_REPORT_EVERY_S = 0.25
REST_S = 5.0  # after a failure of tasks.db

_log = logging.getLogger(__name__)


class Tasks:
    """Tasks of one home, run one after another.

    Args:
        engine: engine of the home; a readonly one accepts no task.
        catalogue: its collections, as requests see them.
        open_engine: opens the home readonly; called in another process, so it has to be picklable.
        memory_bytes: memory limit of a task's process, beside its libraries; the machine's memory when None.
        device: where training runs.
        model_upload_bytes: most bytes of a model that is sent to be judged.
        stored: called with the name of a collection that has documents of files, in the thread of the task.

    Attributes:
        uploads: models that were sent.
        forms: files that were sent.
    """

    def __init__(
        self,
        engine: SearchEngine,
        catalogue: Catalogue,
        open_engine: OpenEngine,
        *,
        memory_bytes: int | None = None,
        device: str = "cpu",
        model_upload_bytes: int = MAX_BYTES,
        stored: Callable[[str], object] = lambda _: None,
    ):
        self._engine, self._catalogue = engine, catalogue
        folder = engine.home.path / FOLDER_NAME
        self.uploads = TaskUploads.of_models(folder, model_upload_bytes)
        self.forms = TaskUploads.of_forms(folder)
        # An accelerator's driver reserves more address space than any machine has memory.
        on_cpu = device == "cpu"
        memory_bytes = memory_bytes or (_memory_of_the_machine() if on_cpu else None)
        self._work = TaskWork(
            catalogue,
            open_engine,
            self.uploads,
            self.forms,
            memory_bytes=memory_bytes,
            device=device,
            stored=stored,
        )
        self._changed = threading.Condition()
        self._stopping = False
        self._cancelled: set[str] = set()
        self._threads: list[threading.Thread] = []
        self._store: TaskStore | None = None
        self._damage: DsearchError | None = None

    @property
    def store(self) -> TaskStore:
        """Store of the tasks.

        Raises:
            Conflict: the home was opened readonly.
            NotReady: before `start` or after `stop`.
            CorruptData, UnsupportedFormat: `tasks.db` is damaged; all else goes on.
        """
        if self._engine.readonly:
            raise Conflict("this server has its home open for reading alone; there are no tasks")
        if self._damage is not None:
            raise type(self._damage)(*self._damage.args)
        if self._store is None:
            raise NotReady("the service is starting or stopping; ask again in a moment")
        return self._store

    def start(self) -> None:
        """Resume interrupted tasks and start the threads; to be called once."""
        if self._engine.readonly:
            return
        try:
            self._store = TaskStore(self._engine.home.path)
        except (CorruptData, UnsupportedFormat) as error:  # no reason to refuse searches
            self._damage = error
            _log.error("tasks are refused: %s", error)
            return
        for task in self.store.list(QUEUED, state="running"):
            self._resume(task)
        waiting = self.store.list(QUEUED + len(LANES), state="queued")  # with those that ran and wait again
        requests = [self.store.request(task) for task in waiting]
        for uploads in (self.uploads, self.forms):
            uploads.keep_only(requests)
        for kinds in LANES:
            thread = threading.Thread(
                target=self._run_loop, args=(kinds,), name=f"tasks {kinds[0]}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def request_stop(self) -> None:
        """Ask the running tasks to stop; they continue when the server is started again."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Call `request_stop`, wait for the threads to end, and close the file."""
        self.request_stop()
        for thread in self._threads:
            thread.join()
        if self._store is not None:
            self._store.close()
            self._store = None

    def require_room(self, collection: str) -> None:
        """Raise what `add` would raise now."""
        with self._catalogue.using(collection):
            pass
        if self.store.count("queued") >= QUEUED:
            raise Overloaded(f"{QUEUED} tasks wait already; try again when some are done")

    def add(self, kind: TaskKind, collection: str, request: dict[str, Any]) -> StoredTask:
        """Accept a task; it is stored on disk on return.

        Raises:
            CollectionNotFound.
            Overloaded: as many wait as may.
        """
        with self._changed:
            self.require_room(collection)
            task = self.store.add(kind, collection, request)
            self._changed.notify_all()
        return task

    def cancel(self, id: str) -> StoredTask:
        """Cancel a task: one that waits at once, one that runs soon; one that has ended stays as it is.

        Raises:
            TaskNotFound.
        """
        with self._changed:
            request = self.store.request(self.store.get(id))
            if self.store.cancel_queued(id):
                self._delete_uploads(request)
            elif self.store.get(id).state == "running":
                self._cancelled.add(id)
        return self.store.get(id)

    def events(self, id: str, after: int) -> tuple[StoredTask, list[TaskEvent]]:
        """A task as it stands, and its events after number `after`.

        Raises:
            TaskNotFound.
        """
        task = self.store.get(id)  # read first: all events before its end are then there
        return task, self.store.events(task, after)

    # ---- in the threads

    def _run_loop(self, kinds: Sequence[TaskKind]) -> None:
        message = ""
        while not self._stopping:
            try:
                with self._changed:
                    task = None if self._stopping else self.store.next(kinds)
                    if task is None and not self._stopping:
                        self._changed.wait()
                if task is not None:
                    self._run(task)
                message = ""
            except DsearchError as error:  # of tasks.db: a full disk, say, which has room again later
                if str(error) != message:
                    message = str(error)
                    _log.error("tasks wait: %s", message)
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, REST_S)

    def _run(self, task: StoredTask) -> None:
        folder, request = self._engine.home.path / FOLDER_NAME / task.id, dict[str, Any]()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            request = self.store.request(task)
            cancelled = partial(self._is_cancelled, task)
            result = self._work.result(Job(task, request, folder, self._reporter(task), cancelled))
        except Cancelled:
            if self._stopping and task.id not in self._cancelled:
                self.store.requeue(task, begun=False)
                return
            self.store.end(task, "cancelled")
        except FilesNotStored as error:
            result = public_report(error.report)
            self.store.end(task, "failed", result=result, problem=problem_members(error))
        except DsearchError as error:
            self.store.end(task, "failed", problem=problem_members(error))
        except Exception as error:
            if isinstance(error, OSError) and error.errno in FULL:
                problem = problem_members(disk_error(error, f"the task ({task.kind}) was not carried out"))
            else:
                reference = uuid.uuid4().hex
                _log.exception("task %s failed (%s)", task.id, reference)
                detail = f"an unexpected error; the server's log has it under {reference}"
                problem = {"code": "internal_error", "detail": detail}
            self.store.end(task, "failed", problem=problem)
        else:
            self.store.end(task, "done", result=result)
        self._cancelled.discard(task.id)
        shutil.rmtree(folder, ignore_errors=True)
        self._delete_uploads(request)

    def _delete_uploads(self, request: dict[str, Any]) -> None:
        """Delete what a task was sent with."""
        for uploads in (self.uploads, self.forms):
            uploads.delete(request)

    def _is_cancelled(self, task: StoredTask) -> bool:
        return self._stopping or task.id in self._cancelled

    def _reporter(self, task: StoredTask) -> Callable[[Progress | TaskNote], None]:
        """Return a function that stores a task's reports; progress only at intervals and at a stage's end."""
        latest = {"stage": "", "at": 0.0}

        def report(event: Progress | TaskNote) -> None:
            if isinstance(event, TaskNote):
                self.store.append_event(task, event.kind, event.data)
                return
            now = time.monotonic()
            last = event.total > 0 and event.done >= event.total
            if event.stage == latest["stage"] and now - latest["at"] < _REPORT_EVERY_S and not last:
                return
            latest["stage"], latest["at"] = event.stage, now
            left_s = event.seconds_left
            progress = {
                "stage": event.stage,
                "done": event.done,
                "total": event.total,
                "elapsed_s": round(event.elapsed_s, 2),
                "eta_s": None if left_s is None else round(left_s, 2),
            }
            self.store.append_event(task, "progress", progress)

        return report

    def _resume(self, task: StoredTask) -> None:
        """Queue a task again that was running when the server died; end it after too many attempts.

        Files are never given up as a whole: their task leaves out the one that it cannot get past.
        """
        if task.attempts < _ATTEMPTS or task.kind == "files":
            self.store.requeue(task, begun=True)
            return
        shutil.rmtree(self._engine.home.path / FOLDER_NAME / task.id, ignore_errors=True)
        version = self.store.request(task).get("version")  # of a verdict on one that is kept
        route = task.kind if task.kind != "save" else f"models/{version}/judge" if version else "models/save"
        detail = (
            f"the server ended {amount(task.attempts, 'time')} while this ran; to start it again send the "
            f"same request to POST /v1/collections/{task.collection}/{route}"
        )
        self.store.end(task, "interrupted", problem={"code": "interrupted", "detail": detail})


def _memory_of_the_machine() -> int | None:
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def public_report(report: FilesResult) -> dict[str, Any]:
    """`FilesResult` as JSON; no reason says where the home lies."""
    files = [{**asdict(file), "reason": file.reason and without_home(file.reason)} for file in report.files]
    return {**asdict(report), "files": files}


READERS_S = 30.0  # longest request: after it nobody reads an older state


@dataclass(frozen=True, slots=True)
class Job:
    """A running task.

    Attributes:
        task: record of the task.
        request: request that started it.
        folder: folder of the task, with the files of an attempt that was stopped.
        report: receives `Progress` and `TaskNote`.
        cancelled: returns True if the task has to stop.
    """

    task: StoredTask
    request: dict[str, Any]
    folder: Path
    report: Callable[[Any], None]
    cancelled: Callable[[], bool]

    @property
    def collection(self) -> str:
        """Name of its collection."""
        return self.task.collection


class TaskWork:
    """Runs tasks of each kind.

    Args:
        catalogue: the collections, as requests see them.
        open_engine: opens the home readonly; called in another process, so it has to be picklable.
        uploads: models that were sent.
        forms: files that were sent.
        memory_bytes: memory limit of a task's process, beside its libraries; None for no limit.
        device: device of training.
        stored: called with the name of a collection that has documents of files.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        open_engine: OpenEngine,
        uploads: TaskUploads,
        forms: TaskUploads,
        *,
        memory_bytes: int | None,
        device: str,
        stored: Callable[[str], object],
    ):
        self._catalogue, self._open_engine, self._uploads = catalogue, open_engine, uploads
        self._forms, self._memory_bytes, self._device, self._stored = forms, memory_bytes, device, stored

    def result(self, job: Job) -> dict[str, Any]:
        """Run a job and return its result, as JSON.

        Raises:
            DsearchError: raised by the work on purpose; Cancelled after `job.cancelled`.
        """
        kinds = {
            "files": self._files,
            "train": partial(self._learned, compute=train_job),
            "tune": partial(self._learned, compute=tune_job),
            "save": self._save,
            "evaluate": self._evaluate,
            "refresh": self._refresh,
            "compact": self._compact,
            "migrate": self._migrate,
        }
        return kinds[job.task.kind](job)

    def _files(self, job: Job) -> dict[str, Any]:
        place = self._forms.verified(job.request)
        files = [SentFile(file["name"], place, file["offset"], file["size"]) for file in job.request["files"]]
        holding = partial(self._catalogue.writing, job.collection, encoder=True)
        try:
            stored = store_files(
                holding, files, folder=job.folder, on_progress=job.report, cancelled=job.cancelled
            )
        finally:
            self._stored(job.collection)
        return public_report(stored)

    def _save(self, job: Job) -> dict[str, Any]:
        if "version" not in job.request:
            if "file" in job.request:
                job.request["place"] = str(self._uploads.verified(job.request))
            return self._learned(job, save_job)
        from dsearch.training import register_verdict, summary

        request = job.request
        verdict = self._spawned(job, judge_job, self._open_engine, job.collection, request)
        options = {"promote": request["promote"], "accept": request["accept"]}
        with self._catalogue.writing(job.collection) as collection:
            registered = register_verdict(collection, request["version"], verdict, **options)
        return summary(registered, verdict, {})

    def _learned(self, job: Job, compute: Any) -> dict[str, Any]:
        """Have a head made, keep it, and let it answer if it may."""
        request = job.request
        outcome = self._spawned(
            job, compute, self._open_engine, job.collection, request, job.folder, self._device
        )
        with self._catalogue.writing(job.collection) as collection:
            return register_learned(
                job.folder,
                outcome,
                collection,
                promote=request["promote"],
                accept=request["accept"],
                task=job.task.id,
            )

    def _evaluate(self, job: Job) -> dict[str, Any]:
        return self._spawned(job, evaluate_job, self._open_engine, job.collection, job.request)

    def _refresh(self, job: Job) -> dict[str, Any]:
        with self._catalogue.writing(job.collection) as collection:
            number = collection.refresh(job.report, spawned=True, cancelled=job.cancelled, **job.request)
            keys = collection.describe().keys
            return {"generation": number, "model": collection.live_model, "keys": keys}

    def _compact(self, job: Job) -> dict[str, Any]:
        with self._catalogue.writing(job.collection) as collection:
            report = compact(
                collection, job.report, spawned=True, patience_s=READERS_S, cancelled=job.cancelled
            )
        return report.to_dict()

    def _migrate(self, job: Job) -> dict[str, Any]:
        encoded, started = 0, time.monotonic()
        while True:  # again where too much was written meanwhile
            result = self._spawned(job, prepare_job, self._open_engine, job.collection)
            encoded += result["encoded"]
            prepared = PreparedMigration(result["sequence"], encoded, started)
            if (done := self._catalogue.finish_migration(job.collection, prepared)) is not None:
                return {**done.to_dict(), "encoder": public_encoder(done.encoder)}

    def _spawned(self, job: Job, compute: Any, *arguments: Any) -> dict[str, Any]:
        return run_spawned(
            compute,
            *arguments,
            on_progress=job.report,
            cancelled=job.cancelled,
            memory_bytes=self._memory_bytes,
        )

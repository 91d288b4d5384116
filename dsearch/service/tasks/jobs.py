"""Work of tasks, in a process of its own (`run_spawned`), and the home as such a process opens it.

The process opens the home readonly and writes its results into a folder, from which the serving process takes
them. The function that opens it is sent to that process with its arguments bound; nothing is loaded before.
Replicas of a cluster and bulk encoding open a home in the same way.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dsearch.errors import DsearchError
from dsearch.jobs import LearningJob, options_of
from dsearch.types import Progress

if TYPE_CHECKING:
    from dsearch.engine import SearchEngine
    from dsearch.training import Epoch, Headroom, Observer, RunFolder

AnyJob = TypeVar("AnyJob", bound=LearningJob)

OpenEngine = Callable[[], "SearchEngine"]
Report = Callable[[Any], None]


def open_readonly(
    home: Path,
    encoder: str,
    device: str,
    dtype: str | None = None,
    backend: str = "auto",
    next_encoder: str | None = None,
    cache: Path | str | None = None,
) -> SearchEngine:
    """The home as a task sees it; with its arguments bound it is what `create_app` takes as `open_engine`."""
    from dsearch.encoder import EncoderSource, encoder_cache
    from dsearch.engine import SearchEngine

    exports = encoder_cache(home, None if cache is None else Path(cache))
    own = EncoderSource(encoder, exports, backend, dtype, device)
    return SearchEngine(
        home,
        readonly=True,
        encoder=own,
        next_encoder=None if next_encoder is None else replace(own, name=next_encoder),
    )


def open_default(home: Path) -> SearchEngine:
    """The home with the default encoder."""
    from dsearch.engine import SearchEngine

    return SearchEngine(home, readonly=True)


@dataclass(frozen=True, slots=True)
class TaskNote:
    """Something to tell beside progress: `kind` names the event."""

    kind: str
    data: dict[str, Any]


def train_job(
    report: Report, open_engine: OpenEngine, name: str, request: dict[str, Any], folder: Path, device: str
) -> dict[str, Any]:
    """Train a head into `folder`; what is known of it.

    Args:
        report: takes `Progress` and `TaskNote`.
        open_engine: opens the home readonly.
        name: the collection.
        request: of `TrainRequest`.
        folder: the run's; one that a stopped attempt left is gone on with.
        device: where the arithmetic runs.

    Raises:
        DsearchError: whatever training raises on purpose.
    """
    be_first_to_go()
    from dsearch.jobs import TrainingJob
    from dsearch.service.tasks.results import write_learned
    from dsearch.training import run_training

    job = job_from_request(TrainingJob, request)
    with open_engine() as engine:
        learned = run_training(
            engine.collection(name),
            job,
            _observer(report),
            open_run=_resumed_or_new(folder),
            device=device,
        )
    return write_learned(folder, learned)


def tune_job(
    report: Report, open_engine: OpenEngine, name: str, request: dict[str, Any], folder: Path, device: str
) -> dict[str, Any]:
    """Tune a search into `folder`; arguments, result and errors as those of `train_job`."""
    be_first_to_go()
    from dsearch.jobs import TuningJob
    from dsearch.service.tasks.results import write_learned
    from dsearch.training import run_tuning

    job = job_from_request(TuningJob, request)
    with open_engine() as engine:
        learned = run_tuning(engine.collection(name), job, _observer(report))
    return write_learned(folder, learned)


def save_job(
    report: Report, open_engine: OpenEngine, name: str, request: dict[str, Any], folder: Path, device: str
) -> dict[str, Any]:
    """Judge a model that was trained elsewhere; arguments, result and errors as those of `train_job`."""
    be_first_to_go()
    from dsearch.engine import parts_from_file
    from dsearch.jobs import SavingJob
    from dsearch.service.tasks.results import write_learned
    from dsearch.training import JobResult, judge_layer

    with open_engine() as engine:
        collection = engine.collection(name)
        parent = request["parent"] or collection.live_model
        head, change = parts_from_file(
            _uploaded(request, folder), collection.store.dimension, request["encoder"]
        )
        job = job_from_request(SavingJob, request)
        judged = judge_layer(
            collection,
            head,
            job,
            encoder=change,
            parent=parent,
            record=request["record"],
            observer=_observer(report),
        )
    return write_learned(folder, JobResult(judged, parent, 0, judged.record["left_out"]))


def _uploaded(request: Mapping[str, Any], folder: Path) -> Path:
    """The file with a task's model."""
    if "place" in request:
        return Path(request["place"])
    place = folder / "content.safetensors"  # taken on by an earlier release, which kept it with the task
    place.write_bytes(base64.b64decode(request["content"]))
    return place


def judge_job(report: Report, open_engine: OpenEngine, name: str, request: dict[str, Any]) -> dict[str, Any]:
    """Judge scores of examples; arguments and errors as those of `train_job`."""
    be_first_to_go()
    from dsearch.jobs import SavingJob
    from dsearch.training import judged_scores

    job = job_from_request(SavingJob, request)
    with open_engine() as engine:
        return judged_scores(engine.collection(name), job, request.get("live"))


def job_from_request(job: type[AnyJob], request: Mapping[str, Any]) -> AnyJob:
    """The job of a task's request; fields that an earlier version wrote and this one lacks are ignored."""
    names = {field.name for field in dataclasses.fields(job)}
    aliases = {about.alias or name: name for name, (_, about) in options_of(job).items()}
    options = {aliases.get(name, name): value for name, value in request.items()}
    return job(**{name: value for name, value in options.items() if name in names})


def prepare_job(report: Report, open_engine: OpenEngine, name: str) -> dict[str, Any]:
    """Encode a collection anew by the engine's next encoder, beside the one that answers: `Prepared`.

    An attempt that was stopped left its edition, and this goes on with it.
    """
    be_first_to_go()
    with open_engine() as engine:
        prepared = engine.prepare_migration(name, report)
    return {"sequence": prepared.sequence, "encoded": prepared.encoded}


def _resumed_or_new(folder: Path) -> Callable[[Mapping[str, Any], bool], RunFolder]:
    """The run's folder: resumed where the same run lies there, begun again where another one does."""

    def open_run(identity: Mapping[str, Any], join: bool) -> RunFolder:
        from dsearch.training import RunFolder

        path = folder / "run"
        if path.exists():
            with contextlib.suppress(DsearchError):
                return RunFolder(path, dict(identity), resume=True)
            shutil.rmtree(path)
        return RunFolder(path, dict(identity))

    return open_run


def _observer(report: Report) -> Observer:
    """Reports epochs and headroom as events, and steps only of what has no epochs."""
    from dsearch.training import Observer

    class Reporter(Observer):
        def headroom(self, room: Headroom) -> None:
            report(TaskNote("headroom", room.to_dict()))

        def progress(self, progress: Progress) -> None:
            if progress.stage not in ("train", "validate"):
                report(progress)

        def epoch(self, stage: str, epoch: Epoch) -> None:
            report(Progress(stage, epoch.number, epoch.of, epoch.elapsed_s))
            figures = {
                "stage": stage,
                "epoch": epoch.number,
                "loss": epoch.loss,
                "retention": epoch.retention,
                "ndcg_at_10_before": epoch.before,
                "ndcg_at_10": epoch.after,
            }
            report(TaskNote("metric", figures))

    return Reporter()


def be_first_to_go() -> None:
    """Let Linux end this process, not the serving one, when the machine's memory is short."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def evaluate_job(
    report: Report, open_engine: OpenEngine, name: str, request: dict[str, Any]
) -> dict[str, Any]:
    """Score systems on judgements; arguments and errors as those of `run_evaluation`, the result as JSON."""
    be_first_to_go()
    from dsearch.jobs import EvaluationJob
    from dsearch.training import run_evaluation

    job = EvaluationJob(
        request["queries"],
        request["judgements"],
        model=request["model"],
        systems=request["systems"],
        training=request["training"],
    )
    with open_engine() as engine:
        return run_evaluation(engine.collection(name), job, _observer(report))

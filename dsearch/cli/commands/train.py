"""`dsearch train`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.declared_options import as_flag, with_options_of
from dsearch.cli.interruption import go_on_with
from dsearch.cli.session import opened_engine
from dsearch.cli.training.output import Outcome, outcome_of
from dsearch.cli.training.remote import train_by_server
from dsearch.cli.training.session import (
    DEFAULT_SPLIT,
    JudgedFolder,
    interruptible,
    judged_job,
    require_data,
    run_folder,
    terminal_observer,
    training_processes,
)
from dsearch.cli.training.shards import task_over_shards
from dsearch.errors import HomeLocked, InvalidRequest
from dsearch.jobs import TrainingJob

if TYPE_CHECKING:
    from dsearch.training.loop.run_folder import RunFolder
    from dsearch.training.run import MakeShardTask


@with_options_of(TrainingJob)
def train(
    collection: options.CollectionName = "default",
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Judgements to learn from: a BEIR folder, or a file of query, document and grade as CSV, "
            "TSV, JSON lines or TREC.",
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(help="Judgements of a BEIR folder to learn from: qrels/SPLIT.tsv.")
    ] = DEFAULT_SPLIT,
    exclude: options.ExcludePairs = None,
    teacher: Annotated[
        Path | None,
        typer.Option(help="TSV of query, document, score, for the objective teacher."),
    ] = None,
    trusted_keys: Annotated[
        str | None,
        typer.Option(help="API keys whose clicks evaluate the training on others' clicks, comma-separated."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Reject data with any error instead of skipping lines.")
    ] = False,
    run: Annotated[
        Path | None,
        typer.Option("--run", help="Folder for checkpoints and metrics [default: runs/ of the collection]."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted run; the result is the same.")
    ] = False,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    ray: Annotated[
        str | None,
        typer.Option("--ray", help="Learn over the shards of the Ray cluster at HOST:PORT, or auto."),
    ] = None,
    json: options.AsJson = False,
    **chosen: Any,
) -> None:
    """Fine-tune retrieval: a new version, live at once if it answers held-out queries better.

    Only scope full encodes documents again; torchrun may start it in several processes. An interrupted run
    goes on with --resume. Exit code 3: trained and kept, but the gate did not let it go live.
    """
    require_data(data, split=split, exclude=exclude, strict=strict)
    folder = None if data is None else JudgedFolder(data, split, exclude, teacher, strict)
    keys = None if trusted_keys is None else options.names_in(trusted_keys)
    job = TrainingJob(
        **chosen,
        trusted_keys=keys,
        # Read when the engine is open; what is refused without them is refused before that.
        queries=None if data is None else {},
        judgements=None if data is None else {},
        teacher=None if teacher is None else {},
    )
    job.check(as_flag)
    if ray is not None:
        _require_trainable_over_shards(job)
    own = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    try:
        outcome = _train_here(collection, job, folder, home, own, run=run, resume=resume, ray=ray)
    except HomeLocked as locked:
        here_only = {"--run": run, "--resume": resume, "--ray": ray} | {f"--{k}": v for k, v in own.items()}
        outcome = train_by_server(locked, collection, job, folder, home, here_only)
    if outcome is not None:
        outcome.show(json=json, promote=job.promote)


def _train_here(
    collection: str,
    job: TrainingJob,
    folder: JudgedFolder | None,
    home: Path | None,
    own: dict[str, Any],
    *,
    run: Path | None,
    resume: bool,
    ray: str | None,
) -> Outcome | None:
    """Train in this process; None in the processes that `torchrun` started beside the first."""
    from dsearch.training import run_training

    with (
        training_processes(job.scope, own["device"]) as processes,
        opened_engine(home, readonly=not processes.first, **own) as (engine, settings),
    ):
        target = engine.collection(collection)
        make_task: MakeShardTask | None = None
        if ray is not None:
            make_task = lambda chosen: task_over_shards(target, ray, chosen)  # noqa: E731
        if folder is not None:
            job = judged_job(target, job, folder)

        def opened_run(identity: Mapping[str, Any], join: bool) -> RunFolder:
            opened = run_folder(target, identity, run, resume=resume or join)
            go_on_with("--resume")
            return opened

        with interruptible() as pressed, terminal_observer(cancelled=pressed) as observer:
            learned = run_training(
                target,
                job,
                observer,
                open_run=opened_run,
                device=settings.device,
                processes=processes,
                make_task=make_task,
            )
        if not processes.first:
            return None
        registered = learned.register(target, job)
    return outcome_of(collection, job, learned, registered)


def _require_trainable_over_shards(job: TrainingJob) -> None:
    """Refuse what shards cannot learn, or could not answer with."""
    chosen = {
        "source": job.source,
        "objective": job.objective if job.field is not None else None,
        "scope": None if job.scope == "head" else job.scope,
        "precision": job.precision if job.precision == "bfloat16" else None,
    }
    if names := ", ".join(as_flag(name, value) for name, value in chosen.items() if value is not None):
        raise InvalidRequest(
            f"--ray trains a head from judgements or the corpus; leave out {names}, or train without --ray"
        )

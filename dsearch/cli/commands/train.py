"""`dsearch train` and `dsearch tune`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.engine import finished, in_process, local_engine, terminal_observer, writing
from dsearch.cli.grouped_help import go_on_with
from dsearch.cli.options import as_flag, with_options_of
from dsearch.cli.session import ProgressBars, print_json
from dsearch.cli.training import (
    DEFAULT_SPLIT,
    JudgedFolder,
    gate_lines,
    interruptible,
    judged_by,
    leg_lines,
    live_line,
    require_data,
    run_folder,
    show_training,
    stop_unless,
    stored_line,
    training_processes,
)
from dsearch.errors import Command, InvalidRequest, Unavailable, amount
from dsearch.jobs import TrainingJob, TuningJob, request_of

if TYPE_CHECKING:
    from dsearch.client import LocalEngine
    from dsearch.engine import Collection
    from dsearch.training import TrainingOptions
    from dsearch.training.head_task import MakeTask
    from dsearch.training.loop.distributed import Processes
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
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    here_only = {"run": run, "resume": resume, "ray": ray, **own}
    names = ", ".join(f"--{name}" for name, value in here_only.items() if value)
    stays = f"it does not take {names}; end it first, or leave that out" if names else None
    with (
        training_processes(job.scope, device) as processes,
        writing(home, own, stays=stays)
        if processes.first
        else local_engine(home, own, readonly=True) as engine,
    ):
        if folder is not None:
            job = judged_by(engine, home, collection, job, folder)
        if (local := in_process(engine)) is not None:
            result = _train_here(local, collection, job, processes, run=run, resume=resume, ray=ray)
        else:
            result = finished(engine, engine.train(collection, **request_of(job)))
    if result is not None:
        show_training(collection, job, result, json=json)


def _train_here(
    engine: LocalEngine,
    collection: str,
    job: TrainingJob,
    processes: Processes,
    *,
    run: Path | None,
    resume: bool,
    ray: str | None,
) -> dict[str, Any] | None:
    """Train in this process: the record, and the result as of a task.

    None in the processes that `torchrun` started beside the first.
    """
    from dsearch.training import run_training

    target = engine.engine.collection(collection)
    make_task: MakeShardTask | None = None
    if ray is not None:
        make_task = lambda chosen: task_over_shards(target, ray, chosen)  # noqa: E731

    def opened_run(identity: Mapping[str, Any], join: bool) -> RunFolder:
        opened = run_folder(target, identity, run, resume=resume or join)
        go_on_with("--resume")
        return opened

    with interruptible() as pressed, ProgressBars() as on_progress:
        learned = run_training(
            target,
            job,
            terminal_observer(on_progress, pressed),
            open_run=opened_run,
            device=engine.device,
            processes=processes,
            make_task=make_task,
        )
    if not processes.first:
        return None
    return {**learned.result.record, **learned.summary(learned.register(target, job))}


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


@with_options_of(TuningJob)
def tune(
    data: options.BeirData,
    collection: options.CollectionName = "default",
    split: Annotated[str, typer.Option(help="Judgements to tune on: qrels/SPLIT.tsv.")] = "train",
    exclude: options.ExcludePairs = None,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
    **chosen: Any,
) -> None:
    """Choose keyword weight, k1 and b, and hop strength on judgements; a few dozen queries suffice.

    The result is a version from which later training starts. Exit code 3: the gate did not let it go live.
    """
    job, folder = TuningJob(**chosen), JudgedFolder(data, split, exclude)
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with writing(home, own, learns=True) as engine:
        job = judged_by(engine, home, collection, job, folder)
        result = finished(engine, engine.tune(collection, **request_of(job)))
    record = {"version": result.pop("model"), **result}
    if json:
        print_json(record)
    else:
        from dsearch.training.tune import setting_from

        typer.echo(record["verdict"])
        typer.echo(f"{collection}: {record['version']} has {setting_from(record)}")
        typer.echo(
            f"nDCG@10 on {amount(record['examples'], 'query')}: "
            + ", ".join(f"{name} {value:.4f}" for name, value in record["scores"].items())
        )
        for line in leg_lines(record):
            typer.echo(line)
        for line in gate_lines(record):
            typer.echo(line)
        if record["second_stage"]:
            typer.echo(record["second_stage"]["text"])
        version = record["version"]
        live = record["live"]
        typer.echo(live_line(version, record["undo"]) if live else stored_line(collection, version))
    stop_unless(record["live"] or not job.promote)


ANSWER_S = 60.0  # a step over a large shard takes longer than a search


def task_over_shards(collection: Collection, address: str, options: TrainingOptions) -> MakeTask:
    """Return the task that computes each training step on the collection's live shards.

    Raises:
        MissingExtra, Unavailable: no cluster at the address, or it does not serve the collection.
        Conflict: the shards have other documents than the collection.
        InvalidRequest, NotInCluster: options or documents that do not train over shards.
    """
    from dsearch.cluster.connection import connect
    from dsearch.cluster.coordinator import LiveRelease, coordinator, outcome
    from dsearch.cluster.finetune import over, require_same_documents, require_trainable
    from dsearch.cluster.shards.remote import RayShards
    from dsearch.cluster.training import ShardedCorpus
    from dsearch.cluster.transfer import read_release

    require_trainable(options)
    connect(address)
    described = outcome(coordinator().live.remote()).get(collection.name)
    if described is None:
        raise Unavailable(
            f"the cluster at {address} has no shards of {collection.name}; start them",
            hint=Command("cluster start", ("-c", collection.name, "--ray", address)),
        )
    live = LiveRelease(**described)
    corpus = ShardedCorpus(read_release(live.uri), RayShards(live, answer_s=ANSWER_S))
    require_same_documents(corpus, collection)
    return over(corpus)

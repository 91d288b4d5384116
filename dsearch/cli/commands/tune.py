"""`dsearch tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.declared_options import with_options_of
from dsearch.cli.remote import ended_task, server_of
from dsearch.cli.session import opened_engine, print_json
from dsearch.cli.training.output import answers_now, decision_lines, is_kept, leg_lines
from dsearch.cli.training.remote import judged_beside
from dsearch.cli.training.session import JudgedFolder, judged_job, stop_unless, terminal_observer
from dsearch.errors import HomeLocked, amount
from dsearch.jobs import TuningJob, request_of


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
    try:
        record = _tune_here(collection, job, folder, home, own)
    except HomeLocked as locked:
        with server_of(locked, own) as client:
            job = judged_beside(home, collection, job, folder)
            task = client.tune(collection, **request_of(job))
            result = ended_task(client, task, f"tuning of {collection}", unit="settings")
        record = {"version": result.pop("model"), **result}
    if json:
        print_json({name: value for name, value in record.items() if name != "text"})
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
        typer.echo(record.get("text") or "\n".join([f"gate: {record['reason']}", *decision_lines(record)]))
        if record.get("second_stage"):
            typer.echo(record["second_stage"]["text"])
        version = record["version"]
        live = record["live"]
        typer.echo(answers_now(version, record.get("undo")) if live else is_kept(collection, version))
    stop_unless(record["live"] or not job.promote)


def _tune_here(
    collection: str, job: TuningJob, folder: JudgedFolder, home: Path | None, own: dict[str, Any]
) -> dict[str, Any]:
    """Tune in this process; the record as JSON, and the gate's report as `text`."""
    with opened_engine(home, readonly=False, **own) as (engine, _):
        from dsearch.training import run_tuning

        target = engine.collection(collection)
        job = judged_job(target, job, folder)
        with terminal_observer("settings") as observer:
            learned = run_tuning(target, job, observer)
        registered = learned.register(target, job)
        second_stage = learned.summary(registered)["second_stage"]
        text = learned.result.gate.to_text()
    return {
        "version": registered.model,
        "live": registered.live is not None,
        "reason": registered.reason,
        "verdict": registered.sentence,
        "previous": registered.previous,
        "undo": registered.undo,
        **learned.result.record,
        "second_stage": second_stage,
        "text": text if registered.outdated_by is None else f"{text}\n{registered.reason}",
    }

"""`dsearch tune`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.declared_options import with_options_of
from dsearch.cli.engine import finished, writing
from dsearch.cli.session import print_json
from dsearch.cli.training.output import answers_now, gate_lines, is_kept, leg_lines
from dsearch.cli.training.session import JudgedFolder, judged_by, stop_unless
from dsearch.errors import amount
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
        typer.echo(answers_now(version, record["undo"]) if live else is_kept(collection, version))
    stop_unless(record["live"] or not job.promote)

"""`dsearch tune`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.remote import ended_task, server_of
from dsearch.cli.session import ProgressBars, opened_engine, print_json
from dsearch.cli.training.output import is_kept
from dsearch.cli.training.remote import checked_beside
from dsearch.cli.training.session import judged_examples, stop_unless
from dsearch.errors import HomeLocked
from dsearch.types import Progress

if TYPE_CHECKING:
    from dsearch.client import Client
    from dsearch.training import Examples, Gate, Tuned


def tune(
    data: options.BeirData,
    collection: options.CollectionName = "default",
    split: Annotated[str, typer.Option(help="Judgements to tune on: qrels/SPLIT.tsv.")] = "train",
    exclude: options.ExcludePairs = None,
    seed: Annotated[int, typer.Option(help="Of folds and draws.")] = 0,
    promote: Annotated[bool, typer.Option(help="Let the tuned search answer, if it does better.")] = True,
    accept: Annotated[
        bool, typer.Option("--accept", help="Let the tuned search answer, whatever the gate says.")
    ] = False,
    alpha: options.Alpha = 0.05,
    margin: options.Margin = 0.02,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Choose keyword weight, k1 and b, and hop strength on judgements; a few dozen queries suffice.

    Kept as a model; later training starts from it. Exit code 3: the gate did not let it answer.
    """
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    may: dict[str, Any] = {"promote": promote, "accept": accept}
    try:
        with opened_engine(home, readonly=False, **own) as (engine, _):
            from dsearch.training import Gate, register_trained

            target = engine.collection(collection)
            examples = judged_examples(target, data, split, exclude)
            tuned = _with_progress(examples, Gate(alpha=alpha, margin=margin), seed)
            made = register_trained(target, tuned, **may)
        gate = tuned.gate.to_text()
        version, live = made.model, made.live is not None
        told = {"version": version, "live": live, "reason": made.reason, **tuned.record}
    except HomeLocked as locked:
        with server_of(locked) as client:
            asked: dict[str, Any] = {"seed": seed, "alpha": alpha, "margin": margin, **may}
            told = _by_server(client, home, collection, data, split, exclude, asked)
        version, live, gate = told["version"], told["live"], f"gate: {told['reason']}"
    if json:
        print_json(told)
    else:
        from dsearch.training.tune import setting_from

        typer.echo(f"{collection}: {version} has {setting_from(told)}")
        typer.echo(
            f"nDCG@10 on {told['examples']} queries: "
            + ", ".join(f"{name} {value:.4f}" for name, value in told["scores"].items())
        )
        typer.echo(gate)
        typer.echo(f"{version} answers now" if live else is_kept(collection, version))
    stop_unless(live or not promote)


def _by_server(
    client: Client,
    home: Path | None,
    collection: str,
    data: Path,
    split: str,
    exclude: Path | None,
    asked: dict[str, Any],
) -> dict[str, Any]:
    """Have the server tune; what is told of it as JSON."""
    from dsearch.evaluation import read_pairs

    checked = checked_beside(home, collection, data, split)
    if exclude is not None:
        asked["exclude"] = {query: sorted(ids) for query, ids in read_pairs(exclude).items()}
    task = client.tune(collection, checked.queries, checked.qrels, **asked)
    result = ended_task(client, task, f"tuning of {collection}", unit="settings")
    return {"version": result.pop("model"), **result}


def _with_progress(examples: Examples, gate: Gate, seed: int) -> Tuned:
    from dsearch.training import tune as choose

    started = time.monotonic()
    with ProgressBars("settings") as on_progress:
        return choose(
            examples,
            gate=gate,
            seed=seed,
            on_setting=lambda done, of: on_progress(
                Progress("settings", done, of, time.monotonic() - started)
            ),
        )

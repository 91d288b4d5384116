"""`dsearch train --objective value --field price`: a head that predicts a field of the documents."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from dsearch.cli.runs import interruptible, run_folder
from dsearch.cli.session import ProgressBars, opened_engine, print_json, say
from dsearch.cli.training import judged_examples, keep, start_of_training, stop_unless
from dsearch.errors import InvalidRequest

VALUE = "value"
_OPTIONS = ("epochs", "learning_rate", "batch_size", "heads", "seed")


def require_field(objective: str | None, field: str | None, refused: dict[str, object]) -> None:
    """Refuse what does not go together.

    Raises:
        InvalidRequest: one of objective value and a field without the other; options of other trainings.
    """
    if objective != VALUE or field is None:
        raise InvalidRequest(
            "--objective value learns to predict a field, and --field says which: give both, such as "
            "--objective value --field price"
        )
    if given := [name for name, value in refused.items() if value]:
        raise InvalidRequest(
            f"--objective value learns from the documents' own {field!r}; leave out {', '.join(given)}"
        )


def train_values(
    collection: str,
    field: str,
    *,
    home: Path | None,
    encoder: str | None,
    device: str | None,
    threads: int | None,
    data: Path | None,
    split: str,
    exclude: Path | None,
    chosen: dict[str, Any],
    alpha: float,
    margin: float,
    run: Path | None,
    resume: bool,
    strict: bool,
    promote: bool,
    accept: bool,
    json: bool,
) -> None:
    """Train, keep, and tell; judgements, where given, only say what becomes of search."""
    from dsearch.training import Gate, ValueOptions, finetune_values, value_examples

    options = ValueOptions(**{name: chosen[name] for name in _OPTIONS if name in chosen})
    with opened_engine(home, readonly=False, encoder=encoder, device=device, threads=threads) as (
        engine,
        settings,
    ):
        target = engine.collection(collection)
        examples = value_examples(target, field)
        judged = None if data is None else judged_examples(target, data, split, exclude, strict=strict)
        parent = start_of_training(target)
        described = {"options": asdict(options), "data": examples.digest, "parent": parent}
        folder = run_folder(target, described, run, resume=resume)
        say(f"metrics and checkpoints: {folder.path}")
        with interruptible() as cancelled, ProgressBars("steps") as on_progress:
            trained = finetune_values(
                examples,
                options,
                gate=Gate(alpha=alpha, margin=margin),
                start=target.head(parent),
                judged=judged,
                device=settings.device,
                on_progress=on_progress,
                cancelled=cancelled,
                run=folder,
            )
        version, live = keep(target, trained, promote=promote, accept=accept, parent=parent)
    if json:
        print_json({"version": version, "live": live, "reason": trained.gate.reason, **trained.record})
        stop_unless(live or not promote)
        return
    typer.echo(
        f"{collection}: {version} learned to predict {field!r} ({examples.kind}) from {len(examples)} "
        f"documents in {trained.seconds:.1f} s ({trained.epochs} epochs)"
    )
    typer.echo(trained.to_text())
    typer.echo(
        f"{version} answers now; back with: dsearch promote {parent} -c {collection}"
        if live
        else f"{version} is kept but does not answer; predict with model={version!r}, or: "
        f"dsearch promote {version} -c {collection}"
    )
    stop_unless(live or not promote)

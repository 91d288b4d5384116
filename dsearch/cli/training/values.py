"""`dsearch train --objective value --field price`: a head that predicts a field of the documents."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from dsearch.cli.session import ProgressBars, opened_engine, say
from dsearch.cli.training.output import Outcome, answers_now, is_kept
from dsearch.cli.training.session import interruptible, judged_of, run_folder

if TYPE_CHECKING:
    from dsearch.cli.training.options import Asked

_OPTIONS = ("epochs", "learning_rate", "batch_size", "heads", "query_side", "seed")


def train_values(asked: Asked) -> Outcome:
    """Train and keep; judgements, where given, only say what becomes of search."""
    from dsearch.training import (
        Gate,
        ValueOptions,
        finetune_values,
        register_trained,
        starting_version,
        value_examples,
    )

    chosen, field = asked.chosen(), asked.field
    assert field is not None  # it was asked for
    options = ValueOptions(**{name: chosen[name] for name in _OPTIONS if name in chosen})
    with opened_engine(
        asked.home, readonly=False, encoder=asked.encoder, device=asked.device, threads=asked.threads
    ) as (engine, settings):
        target = engine.collection(asked.collection)
        examples = value_examples(target, field)
        judged = None if asked.data is None else judged_of(target, asked)
        parent = starting_version(target)
        described = {"options": asdict(options), "data": examples.digest, "parent": parent}
        folder = run_folder(target, described, asked.run, resume=asked.resume)
        say(f"metrics and checkpoints: {folder.path}")
        with interruptible() as cancelled, ProgressBars("steps") as on_progress:
            trained = finetune_values(
                examples,
                options,
                gate=Gate(alpha=asked.alpha, margin=asked.margin),
                start=target.head(parent),
                judged=judged,
                device=settings.device,
                on_progress=on_progress,
                cancelled=cancelled,
                run=folder,
            )
        made = register_trained(target, trained, promote=asked.promote, accept=asked.accept, parent=parent)
    version, live = made.model, made.live is not None
    lines = [
        (
            f"{asked.collection}: {version} learned to predict {field!r} ({examples.kind}) from "
            f"{len(examples)} documents in {trained.seconds:.1f} s ({trained.epochs} epochs)"
        ),
        trained.to_text(),
        answers_now(asked.collection, version, parent)
        if live
        else is_kept(asked.collection, version, f"predict with model={version!r}"),
    ]
    return Outcome(live, {"version": version, "live": live, "reason": made.reason, **trained.record}, lines)

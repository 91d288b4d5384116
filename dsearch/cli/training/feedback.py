"""`dsearch train --from feedback`: from clicks to a head, behind a gate that only the trusted write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsearch.cli.session import ProgressBars, say
from dsearch.cli.training.session import judged_examples
from dsearch.types import Progress

if TYPE_CHECKING:
    from dsearch.cli.training.options import Asked
    from dsearch.engine import Collection
    from dsearch.training import Examples, Gate, Trained


def train_on_feedback(
    collection: Collection, asked: Asked, gate: Gate, device: str, parent: str
) -> tuple[Trained, Examples]:
    """Train, with a bar; the trained head and what it learned from.

    The gate believes keys that are trusted, whose clicks are not trained on, or judgements, where either
    was given.

    Args:
        collection: whose feedback.
        asked: options.
        gate: what is asked.
        device: where the arithmetic runs.
        parent: the version that training starts from.

    Raises:
        InvalidRequest: no feedback, or none of the trusted keys'.
    """
    from dsearch.training import examples_from_feedback, feedback_options, finetune_from_feedback

    training = feedback_options(**asked.chosen())
    trusted_keys = asked.trusted()
    source = examples_from_feedback(collection, without=trusted_keys)
    say(source.to_text())
    trusted = None
    if trusted_keys:
        trusted = examples_from_feedback(collection, propensities=source.propensities, only=trusted_keys)
    elif asked.data is not None:
        trusted = judged_examples(collection, asked.data, asked.split, asked.exclude)
    live = collection.live_model
    arguments: dict[str, Any] = {}
    if live != parent and collection.encoder_of(live).identity == collection.encoder.identity:
        arguments["live"] = collection.head(live)
    elif live != parent:
        say(f"{live}, which answers now, has an encoder of its own: the gate compares with {parent}")
    with ProgressBars("epochs") as on_progress:
        trained = finetune_from_feedback(
            source,
            trusted,
            training,
            gate=gate,
            start=collection.head(parent),
            device=device,
            on_headroom=lambda room: say(room.to_text()),
            on_epoch=lambda stage, epoch: on_progress(
                Progress(stage, epoch.number, epoch.of, epoch.elapsed_s)
            ),
            **arguments,
        )
    return trained, source.examples

"""`dsearch train --from feedback`: from clicks to a head, behind a gate that only the trusted write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsearch.cli.session import ProgressBars, say
from dsearch.cli.training import judged_examples
from dsearch.errors import InvalidRequest
from dsearch.types import Progress

if TYPE_CHECKING:
    from dsearch.engine import Collection
    from dsearch.training import Examples, Gate, Trained

FEEDBACK = "feedback"


@dataclass(frozen=True, slots=True)
class Trust:
    """What the gate may believe.

    Attributes:
        keys: API keys (or client:ID) whose clicks judge; they are not trained on.
        data: a BEIR folder whose judgements do, in place of clicks.
        split: of the folder.
        exclude: pairs that are left out.
    """

    keys: tuple[str, ...] = ()
    data: Path | None = None
    split: str = "train"
    exclude: Path | None = None


def require_feedback(source: str | None, *, self_supervised: bool, scope: str, teacher: Path | None) -> None:
    """Refuse what learning from feedback does not go together with.

    Raises:
        InvalidRequest: another source, or options of another one.
    """
    if source != FEEDBACK:
        given = "--trusted-keys without it" if source is None else f"--from {source}"
        raise InvalidRequest(f"{given}; use --from {FEEDBACK}")
    if self_supervised or teacher is not None or scope != "head":
        raise InvalidRequest(
            "--from feedback trains a head on clicks; leave --self-supervised, --teacher and --scope out"
        )


def trust_of(keys: str | None, data: Path | None, split: str, exclude: Path | None) -> Trust:
    """What was given on the command line.

    Raises:
        InvalidRequest: both keys and judgements, or an empty list of keys.
    """
    names = tuple(name.strip() for name in (keys or "").split(",") if name.strip())
    if keys is not None and not names:
        raise InvalidRequest("--trusted-keys is empty; give ids of keys, with commas between them")
    if names and data is not None:
        raise InvalidRequest("give --trusted-keys or --data to judge by, not both")
    return Trust(names, data, split, exclude)


def train_on_feedback(
    collection: Collection, trust: Trust, chosen: dict[str, Any], gate: Gate, device: str, parent: str
) -> tuple[Trained, Examples]:
    """Train, with a bar; the trained head and what it learned from.

    Args:
        collection: whose feedback.
        trust: what judges.
        chosen: options of the training that are not the defaults.
        gate: what is asked.
        device: where the arithmetic runs.
        parent: the version that training starts from.

    Raises:
        InvalidRequest: no feedback, or none of the trusted keys'.
    """
    from dsearch.training import examples_from_feedback, feedback_options, finetune_from_feedback

    training = feedback_options(**chosen)
    source = examples_from_feedback(collection, without=trust.keys)
    say(source.to_text())
    trusted = None
    if trust.keys:
        trusted = examples_from_feedback(collection, propensities=source.propensities, only=trust.keys)
    elif trust.data is not None:
        trusted = judged_examples(collection, trust.data, trust.split, trust.exclude)
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

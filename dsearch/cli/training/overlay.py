"""`dsearch train --overlay`: bounded changes to the keys of judged documents, beside the head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsearch.cli.training.session import interruptible

if TYPE_CHECKING:
    from dsearch.training import Examples, Gate, GateReport, Trained, TrainingOptions


def learned_overlay(
    trained: Trained, examples: Examples, training: TrainingOptions, gate: Gate, device: str
) -> tuple[Trained, GateReport]:
    """What was trained, with an overlay where held-out queries are answered better with than without."""
    from dsearch.training import with_overlay

    with interruptible() as cancelled:
        return with_overlay(trained, examples, training, gate=gate, device=device, cancelled=cancelled)

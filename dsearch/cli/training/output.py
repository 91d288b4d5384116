"""What `dsearch train` says of what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from dsearch.cli.session import print_json, typed
from dsearch.cli.training.session import stop_unless

if TYPE_CHECKING:
    from dsearch.training import NullSlot, Registered, Trained


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a training.

    Attributes:
        live: whether what it gave answers now.
        told: all of it, as JSON.
        lines: it in words.
    """

    live: bool
    told: Mapping[str, Any]
    lines: Sequence[str]

    def tell(self, *, json: bool, promote: bool) -> None:
        """Print it; exit code 3 when it should have answered, and the gate kept it from that."""
        if json:
            print_json(self.told)
        else:
            typer.echo("\n".join(self.lines))
        stop_unless(self.live or not promote)


def answers_now(collection: str, version: str, parent: str) -> str:
    """A line about a version that answers, with the way back."""
    return f"{version} answers now; back with: {typed('promote', parent, '-c', collection)}"


def is_kept(collection: str, version: str, try_it: str | None = None) -> str:
    """A line about a version that does not answer, with the ways to use it."""
    try_it = try_it or f"try it with --model {version}"
    promote = typed("promote", version, "-c", collection)
    return f"{version} is kept but does not answer; {try_it}, or: {promote}"


def of_trained(
    collection: str,
    made: Registered,
    trained: Trained,
    learned_from: int,
    slot: NullSlot | None,
) -> Outcome:
    """What was trained, what the gate says of each part of it, and what answers now."""
    lines = [
        (
            f"{collection}: {made.version} trained on {learned_from} queries in {trained.seconds:.1f} s "
            f"({trained.epochs} epochs{_served(trained.share, trained.keyword_factor)})"
        ),
        trained.gate.to_text(),
    ]
    if slot is not None:
        lines.append(slot.to_text())
    if trained.tuned is not None:
        report = trained.tuned.gate
        lines.append(f"tuned search, {trained.tuned.setting}: {report.verdict}: {report.reason}")
    if made.live is None:
        lines.append(is_kept(collection, made.version))
    else:
        if made.live != made.version:
            lines.append(f"{made.live}, the tuned search, is better than what answered before")
        lines.append(answers_now(collection, made.live, made.parent))
    live = made.live is not None
    about = {"version": made.model, "live": live, "trained": made.version, "reason": made.reason}
    return Outcome(live, {**about, **trained.record}, lines)


def _served(share: float, keyword_factor: float) -> str:
    told = "" if share == 1.0 else f", of which {share:.0%} is served"
    told += "" if keyword_factor == 1.0 else f", keywords weighed {keyword_factor:g} times as high"
    return f"{told}, for the sake of unseen documents" if told else ""

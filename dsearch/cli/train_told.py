"""What `dsearch train` says of what was trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dsearch.cli.train_overlay import overlay_text

if TYPE_CHECKING:
    from dsearch.training import GateReport, NullSlot, Registered, Trained


def tell_trained(
    collection: str,
    made: Registered,
    parent: str,
    trained: Trained,
    learned_from: int,
    of_overlay: GateReport | None,
    slot: NullSlot | None,
) -> None:
    """What was trained, what the gate says of each part of it, and what answers now."""
    version, live = made.version, made.live is not None
    typer.echo(
        f"{collection}: {version} trained on {learned_from} queries in {trained.seconds:.1f} s "
        f"({trained.epochs} epochs{_served(trained.share, trained.keyword_factor)})"
    )
    typer.echo(trained.gate.to_text())
    if of_overlay is not None:
        typer.echo(overlay_text(of_overlay))
    if slot is not None:
        typer.echo(slot.to_text())
    if trained.tuned is not None:
        report = trained.tuned.gate
        typer.echo(f"tuned search, {trained.tuned.setting}: {report.verdict}: {report.reason}")
    if live and made.live != version:
        typer.echo(f"{made.live}, the tuned search, is better than what answered before")
    typer.echo(
        f"{made.live} answers now; back with: dsearch promote {parent} -c {collection}"
        if live
        else f"{version} is kept but does not answer; try it with --model {version}, or: "
        f"dsearch promote {version} -c {collection}"
    )


def _served(share: float, keyword_factor: float) -> str:
    told = "" if share == 1.0 else f", of which {share:.0%} is served"
    told += "" if keyword_factor == 1.0 else f", keywords weighed {keyword_factor:g} times as high"
    return f"{told}, for the sake of unseen documents" if told else ""

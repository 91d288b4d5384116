"""`dsearch models`, `dsearch promote`, `dsearch refresh`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.session import ProgressBars, opened_engine, print_json


def models(
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """List the trained heads, what they were trained on, and which one answers."""
    with opened_engine(home, readonly=True) as (engine, _):
        target = engine.collection(collection)
        live = target.live_model
        records: list[dict[str, Any]] = [
            {"version": "v0", "parent": None, "live": live == "v0", "record": {}}
        ]
        records += [
            {"version": one.version, "parent": one.parent, "live": one.version == live, "record": one.record}
            for one in target.store.models()
        ]
    if json:
        print_json(records)
        return
    for one in records:
        typer.echo(f"{'*' if one['live'] else ' '} {one['version']:<4} {_described(one)}")


def promote(
    version: Annotated[str, typer.Argument(help="v0, the untrained model, takes training back.")],
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
) -> None:
    """Let a version answer from now on."""
    with opened_engine(home, readonly=False) as (engine, _):
        engine.collection(collection).promote(version)
    typer.echo(f"{collection}: {version} answers now")


def refresh(
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    threads: options.Threads = None,
) -> None:
    """Rebuild the index from the stored embeddings, its keys projected by the live head."""
    with opened_engine(home, readonly=False, threads=threads) as (engine, _):
        target = engine.collection(collection)
        with ProgressBars() as on_progress:
            number = target.refresh(on_progress)
        live = target.live_model
    typer.echo(f"{collection}: generation {number} is live, with the keys of model {live}")


def _described(model: dict[str, Any]) -> str:
    record = model["record"]
    if not record:
        return "untrained"
    origin = f"from {model['parent']}, {record.get('examples', '?')} queries"
    if record.get("scope") == "tune":
        origin = (
            f"tuned {origin}, keyword weight {record['keyword_weight']:g}, "
            f"hop strength {record['hop_strength']:g}, seed {record['seed']}"
        )
    else:
        chosen = record.get("options", {})
        origin = (
            f"trained {origin}, {record.get('epochs', '?')} epochs, {chosen.get('objective', 'listwise')}, "
            f"seed {chosen.get('seed', '?')}"
        )
    gate = record.get("gate", {}).get("verdict", "none")
    return f"{origin}; gate: {gate}, {record.get('verdict', '')}"

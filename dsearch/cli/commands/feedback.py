"""`dsearch feedback`: count, export and clear clicks and judgements. It works beside a running server."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsearch.cli import options
from dsearch.cli.session import print_json, show_outcome
from dsearch.errors import InvalidRequest

if TYPE_CHECKING:
    from dsearch.store import FeedbackStore

feedback = typer.Typer(help="Count, export and clear what people clicked and judged.", no_args_is_help=True)

_DAY_S = 86_400.0


@feedback.command()
def stats(
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Count pages, events by action, keys; and say how much was left to a coin."""
    counts = _opened(home, collection).stats()
    if json:
        print_json(counts)
        return
    actions = ", ".join(f"{count} {name}" for name, count in counts["actions"].items()) or "none"
    typer.echo(f"{collection}: {counts['events']} events ({actions}) on {counts['impressions']} pages")
    typer.echo(f"{counts['randomised']} of the pages had two positions left to a coin")
    typer.echo(f"{counts['keys']} keys; the one with most has {counts['largest_key']} events")
    if counts["events"]:
        typer.echo(
            f"received {_when(counts['first_s'])} to {_when(counts['last_s'])}; {counts['bytes']} bytes"
        )


@feedback.command()
def export(
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to create [default: standard output].")
    ] = None,
) -> None:
    """Write each page with its events as a line of JSON, in the names of Search UBI."""
    import orjson

    store = _opened(home, collection)
    if output is not None and output.exists():
        raise InvalidRequest(f"{output} exists; give a name that is free")
    stream = sys.stdout.buffer if output is None else output.open("xb")
    try:
        for page in store.pages():
            events = [event.to_dict() for event in page.events]
            stream.write(orjson.dumps({**page.impression.to_dict(), "events": events}) + b"\n")
        stream.flush()
    finally:
        if output is not None:
            stream.close()


@feedback.command()
def clear(
    collection: options.CollectionName = "default",
    key: Annotated[str | None, typer.Option(help="Events of this API key (or client:ID).")] = None,
    client: Annotated[str | None, typer.Option(help="Events of this client.")] = None,
    older_than: Annotated[
        float | None, typer.Option(min=0, help="Events received more than this many days ago.")
    ] = None,
    damaged: Annotated[bool, typer.Option("--damaged", help="Only rows that are damaged.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All feedback.")] = False,
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Delete events for good, and the pages that only they referred to; conditions hold together."""
    some = [choice for choice in (key, client, older_than) if choice is not None]
    if bool(some) + damaged + everything != 1:
        raise InvalidRequest("give what to delete: --key, --client and --older-than, or --damaged, or --all")
    before_s = None if older_than is None else time.time() - older_than * _DAY_S
    deleted = _opened(home, collection).clear(key=key, client_id=client, before_s=before_s, damaged=damaged)
    text = f"{collection}: {deleted} {'damaged rows' if damaged else 'events'} deleted"
    show_outcome(text, {"deleted": deleted}, json=json)


def _opened(home: Path | None, collection: str) -> FeedbackStore:
    from dsearch.config import load_settings
    from dsearch.engine.home import Home
    from dsearch.store import FeedbackStore

    return FeedbackStore(Home(load_settings(home=home).home).existing(collection))


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")

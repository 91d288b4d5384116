"""`dsearch feedback`: count, export and clear clicks and judgements. It works beside a running server."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsearch.cli import options
from dsearch.cli.session import command_line, print_json, show_outcome
from dsearch.errors import InvalidRequest, amount
from dsearch.types import CLIENT

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
    actions = ", ".join(f"{name}: {count}" for name, count in counts["actions"].items()) or "none"
    events, pages = amount(counts["events"], "event"), amount(counts["impressions"], "page")
    typer.echo(f"{collection}: {events} ({actions}) on {pages}")
    typer.echo(f"{counts['randomised']} of the pages had two positions left to a coin")
    typer.echo(
        f"{amount(counts['keys'], 'key')}; the one with most has {amount(counts['largest_key'], 'event')}"
    )
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
    """Delete events for good, and the pages that only they referred to; conditions hold together.

    What was learned from them is named and stays: versions, and rows of the query memory.
    """
    some = [choice for choice in (key, client, older_than) if choice is not None]
    if bool(some) + damaged + everything != 1:
        raise InvalidRequest("give what to delete: --key, --client and --older-than, or --damaged, or --all")
    before_s = None if older_than is None else time.time() - older_than * _DAY_S
    deleted = _opened(home, collection).clear(key=key, client_id=client, before_s=before_s, damaged=damaged)
    text = f"{collection}: {amount(deleted, 'damaged row' if damaged else 'event')} deleted"
    if damaged:
        show_outcome(text, {"deleted": deleted}, json=json)
        return
    sender = key if key is not None or client is None else f"{CLIENT}{client}"
    left, before, versions = _learned(home, collection, sender)
    if left:
        came = "came" if older_than is None and None in (key, client) else "may have come"
        stay = "stays" if left == 1 else "stay"
        drop = command_line("rollback", "--rows", str(before), "-c", collection)
        text += (
            f"\n{amount(left, 'row')} of the query memory {came} from such events, and {stay}; drop every "
            f"row since the first of them with: {drop}"
        )
    if versions:
        text += (
            f"\nversions trained from feedback stay: {', '.join(versions)}; "
            f"{command_line('promote', 'VERSION', '-c', collection)} lets another one answer"
        )
    content = {"deleted": deleted, "rows_left": left, "rows_after": before, "versions_left": versions}
    show_outcome(text, content, json=json)


def _learned(home: Path | None, collection: str, sender: str | None) -> tuple[int, int | None, list[str]]:
    """What was learned from feedback of a sender, from all of it when None, and stays.

    Returns the number of rows in the query memory, the operation before the first of them, and the versions
    that were trained from any feedback.
    """
    from dsearch.store import Store

    with closing(Store.open(_folder(home, collection), readonly=True)) as store:
        versions = [model.version for model in store.models() if "feedback" in model.record]
        count, first = store.count_judged("clicks", sender)
        return count, first - 1 if count else None, versions


def _opened(home: Path | None, collection: str) -> FeedbackStore:
    from dsearch.store import FeedbackStore

    return FeedbackStore(_folder(home, collection))


def _folder(home: Path | None, collection: str) -> Path:
    """The folder of a collection, by its name or alias."""
    from dsearch.config import load_settings
    from dsearch.engine.home import Home, read_aliases

    place = Home(load_settings(home=home).home)
    return place.existing(read_aliases(place.path).get(collection, collection))


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")

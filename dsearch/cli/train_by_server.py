"""`dsearch train` while a server holds the lock: the server trains, as a task, and this follows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dsearch.cli.by_server import ended_task, server_of
from dsearch.cli.session import opened_engine, print_json, say
from dsearch.errors import HomeLocked, InvalidRequest

if TYPE_CHECKING:
    from dsearch.training import CheckedData


_SERVERS_NAME = {"encoder_method": "encoder_training"}


def train_by_server(
    locked: HomeLocked,
    collection: str,
    *,
    home: Path | None,
    data: Path | None,
    split: str,
    strict: bool,
    chosen: Mapping[str, Any],
    also: Mapping[str, Any],
    here_only: Mapping[str, Any],
    json: bool,
) -> bool:
    """Have the server train; whether what was trained answers now.

    Args:
        locked: who holds the lock.
        collection: its name.
        home: the folder of collections, read to check the judgements.
        data: a BEIR folder with judgements.
        split: of it.
        strict: refuse judgements with anything wrong in them.
        chosen: how to train, as for `TrainingOptions`.
        also: what else `Client.train` takes.
        here_only: options of the command line that a server does not take; none may be given.
        json: print its answer as JSON.

    Raises:
        HomeLocked: what holds the lock is no server.
        InvalidRequest: an option that a server does not take.
        Conflict: the training did not come to an end; the message says why.
    """
    if given := [name for name, value in here_only.items() if value]:
        if locked.url is None:
            raise locked
        raise InvalidRequest(
            f"the server at {locked.url} holds the lock, and it does not take {', '.join(given)}; end it "
            "first, or leave that out"
        )
    with server_of(locked) as client:
        asked = {_SERVERS_NAME.get(name, name): value for name, value in chosen.items()}
        judged: dict[str, Any] = {}
        if data is not None:
            checked = checked_beside(home, collection, data, split, strict=strict)
            judged = {"queries": checked.queries, "judgements": checked.qrels}
        task = client.train(collection, **judged, **asked, **also)
        result = ended_task(client, task, f"training of {collection}")
    live, version = result["live"], result["model"]
    if json:
        told = {name: value for name, value in result.items() if name != "model"}
        print_json({"version": version, **told})
        return live
    trained, of = result["trained"], "documents" if "field" in also else "queries"
    typer.echo(
        f"{collection}: {trained} trained on {result['examples']} {of} in {result['seconds']:.1f} s "
        f"({result['epochs']} epochs)"
    )
    typer.echo(f"gate: {result['reason']}")
    typer.echo(
        f"{version} answers now; back with: dsearch promote {result['parent']} -c {collection}"
        if live
        else f"{trained} is kept but does not answer; try it with --model {trained}, or: "
        f"dsearch promote {trained} -c {collection}"
    )
    return live


def checked_beside(
    home: Path | None, collection: str, data: Path, split: str, *, strict: bool = False
) -> CheckedData:
    """Judgements held against a collection that a server has open; what is wrong with them is told."""
    from dsearch.training import checked_judgements

    with opened_engine(home, readonly=True) as (engine, _):
        checked = checked_judgements(engine.collection(collection), data, split, strict=strict)
    if checked.report.counts:
        say(checked.report.to_text())
    return checked

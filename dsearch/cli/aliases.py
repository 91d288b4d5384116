"""`dsearch alias`."""

from __future__ import annotations

from typing import Annotated

import typer

from dsearch.cli import options
from dsearch.cli.by_server import server_of
from dsearch.cli.session import opened_engine, print_json, say
from dsearch.errors import HomeLocked


def alias(
    name: Annotated[str | None, typer.Argument(help="The alias.")] = None,
    collection: Annotated[
        str | None, typer.Argument(help="The collection it is to stand for, whatever it stood for.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the alias; the collection stays.")] = False,
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Give a collection a second name, or let that name stand for another one at once. Alone: list them."""
    from dsearch.errors import InvalidRequest

    if (name is None) != (collection is None and not remove) or (remove and collection is not None):
        raise InvalidRequest("use: dsearch alias, dsearch alias NAME COLLECTION, dsearch alias NAME --remove")
    try:
        with opened_engine(home, readonly=name is None) as (engine, _):
            if name is not None and collection is not None:
                engine.set_alias(name, collection)
            elif name is not None:
                engine.drop_alias(name)
            aliases = engine.aliases()
    except HomeLocked as locked:
        with server_of(locked) as client:
            if name is not None and collection is not None:
                client.set_alias(name, collection)
            elif name is not None:
                client.drop_alias(name)
            aliases = client.aliases()
    if json:
        print_json(aliases)
        return
    for one, target in sorted(aliases.items()):
        typer.echo(f"{one}: {target}")
    if not aliases:
        say("no alias")

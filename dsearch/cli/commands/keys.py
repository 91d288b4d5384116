"""`dsearch keys`: API keys of a home. It works beside a running server, which sees changes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsearch.cli import options
from dsearch.cli.session import print_json, say, show_outcome, typed
from dsearch.errors import amount

if TYPE_CHECKING:
    from pathlib import Path

    from dsearch.service.keys import ApiKeys

keys = typer.Typer(help="Make, list and revoke the API keys of the service.", no_args_is_help=True)


@keys.command()
def create(
    name: Annotated[str, typer.Option(help="Description of the owner.")],
    scope: Annotated[
        str, typer.Option(help="read: search; write: also documents; admin: also collections, models, tasks.")
    ] = "read",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Make a key and print it: it is shown this once. From the first one on, every request needs a key."""
    opened = _opened(home)
    first = not opened.list()
    text, key = opened.create(name, scope)
    names = ("id", "name", "scope")
    show_outcome(text, {"key": text, **{name: getattr(key, name) for name in names}}, json=json)
    revoke = typed("keys revoke", key.id)
    say(f"key {key.id} ({key.scope}, {key.name}); it is kept nowhere. Revoke it: {revoke}")
    if first:
        say("from now on every request needs a key: Authorization: Bearer ds_…")


@keys.command("list")
def list_keys(home: options.HomeFolder = None, json: options.AsJson = False) -> None:
    """List the keys by id, scope, date and name; a key itself is kept nowhere."""
    keys = _opened(home).list()
    if json:
        names = ("id", "name", "scope", "created", "revoked")
        print_json([{name: getattr(key, name) for name in names} for key in keys])
        return
    if not keys:
        make = typed("keys create", "--name", "NAME")
        say(f"no keys: whoever reaches the server may use it; make one with: {make}")
    for key in keys:
        state = f"revoked {key.revoked}" if key.revoked else ""
        typer.echo(f"{key.id}  {key.scope:<5}  {key.created}  {key.name}  {state}".rstrip())


@keys.command()
def revoke(
    id: Annotated[str, typer.Argument(help="The key's id.")],
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Let a key no longer open anything, at once."""
    opened = _opened(home)
    key = opened.revoke(id)
    show_outcome(f"key {key.id} ({key.name}) is revoked", {"id": key.id, "revoked": True}, json=json)
    if not opened.opening:
        say(
            "it was the last one: a server of this home answers nobody now; make another with: "
            f"{typed('keys create', '--name', 'NAME')}; or serve without keys, on this machine only: "
            f"{typed('keys clear')}"
        )


@keys.command()
def clear(home: options.HomeFolder = None, json: options.AsJson = False) -> None:
    """Forget all keys, if every one is revoked: a server started then needs none, on this machine only."""
    removed = _opened(home).clear()
    text = (
        f"{amount(removed, 'revoked key is', 'revoked keys are')} forgotten; start the server again, and "
        "it needs no key"
    )
    show_outcome(text, {"removed": removed}, json=json)


def _opened(home: Path | None) -> ApiKeys:
    from dsearch.config import load_settings
    from dsearch.service.keys import ApiKeys

    return ApiKeys(load_settings(home=home).home)

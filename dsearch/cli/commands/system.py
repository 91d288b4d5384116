"""About this installation: `dsearch doctor`, `dsearch config`, `dsearch guide`, and the API keys of a home.

`dsearch keys` works beside a running server, which sees changes at once.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.session import command_line, print_json, say, show_outcome
from dsearch.errors import DsearchError, amount

if TYPE_CHECKING:
    from pathlib import Path

    from dsearch.config import Settings
    from dsearch.service.keys import ApiKeys

_PACKAGES = (
    *("torch", "openvino", "sentence-transformers", "transformers"),
    *("faiss-cpu", "bm25s", "numpy", "fastapi"),
)


def doctor(
    encoder: options.EncoderName = None, threads: options.Threads = None, json: options.AsJson = False
) -> None:
    """Say what this installation is: versions, encoder, FAISS and BLAS, threads, GPU, and what is wrong."""
    import platform

    from dsearch.config import load_settings

    settings = load_settings(encoder=encoder, threads=threads)
    from dsearch.threads import available_cores, set_threads

    count = set_threads(settings.threads)
    import faiss
    import torch
    from threadpoolctl import threadpool_info

    report: dict[str, Any] = {
        "dsearch": version("dsearch"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "threads": {"budget": count, "cores": available_cores(), "pools": _pools(threadpool_info())},
        "faiss": faiss.get_compile_options().strip(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "encoder": {**_encoder(settings.encoder), **_runs_by(settings)},
        "home": str(settings.home),
    }
    if json:
        print_json(report)
    else:
        _print(report)
    if "problem" in report["encoder"]:
        raise typer.Exit(1)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _pools(pools: list[dict[str, Any]]) -> list[str]:
    return [f"{pool['internal_api']} {pool.get('version') or ''}: {pool['num_threads']}" for pool in pools]


def _encoder(name: str) -> dict[str, Any]:
    from dsearch.encoder.weights import find_weights

    try:
        weights = find_weights(name)
    except DsearchError as error:
        return {"name": name, "problem": str(error)}
    return {"name": name, "folder": str(weights.folder), "sha256": weights.sha256}


def _runs_by(settings: Settings) -> dict[str, Any]:
    """The back end that a start takes, and the reason."""
    from dsearch.encoder import EncoderSource

    source = EncoderSource.of(settings)
    cache = {"exports": str(source.cache)}
    try:
        chosen = source.in_use()
    except DsearchError:
        return cache
    remarks = {"note": chosen.note, "prompts": chosen.prompts}
    return {
        "backend": chosen.runs_by,
        **{name: remark for name, remark in remarks.items() if remark is not None},
        **cache,
    }


def _print(report: dict[str, Any], indent: str = "") -> None:
    for key, value in report.items():
        if isinstance(value, dict):
            typer.echo(f"{indent}{key}")
            _print(value, indent + "  ")
        elif isinstance(value, list):
            typer.echo(f"{indent}{key:<22} {', '.join(map(str, value))}")
        else:
            typer.echo(f"{indent}{key:<22} {'none' if value is None else value}")


def config(json: options.AsJson = False) -> None:
    """List every setting with its value, where that comes from, and what it means.

    A setting is a key of dsearch.toml (or of the file that DSEARCH_CONFIG names) and, in capitals, a variable
    DSEARCH_<KEY>; the variable wins, and an option of the command wins over both.
    """
    from dsearch.cli.session import print_json
    from dsearch.config import settings_in_use

    in_use = settings_in_use()
    if json:
        print_json(
            [
                {
                    "key": setting.key,
                    "value": setting.value
                    if isinstance(setting.value, int | float | None)
                    else str(setting.value),
                    "source": setting.source,
                    "meaning": setting.meaning,
                }
                for setting in in_use
            ]
        )
        return
    values = ["unset" if setting.value is None else repr(str(setting.value)) for setting in in_use]
    widths = [
        max(map(len, column))
        for column in ([setting.key for setting in in_use], values, [setting.source for setting in in_use])
    ]
    for setting, value in zip(in_use, values, strict=True):
        cells = (setting.key, value, setting.source)
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        typer.echo(f"{line}  {setting.meaning}")


def guide(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC or QUERY", help="A topic, or words to find [default: list topics]."),
    ] = None,
    json: options.AsJson = False,
) -> None:
    """Read the guides by topic, or search them by words."""
    from dsearch.guide import guide as text_of
    from dsearch.guide import guides

    listed = guides()
    if not words:
        if json:
            print_json(listed)
            return
        width = max(len(entry.topic) for entry in listed)
        for entry in listed:
            typer.echo(f"{entry.topic:<{width}}  {entry.title}")
        return
    topic = words[0]
    if len(words) > 1 or topic not in [entry.topic for entry in listed]:
        _search_guides(" ".join(words), json=json)
        return
    text = text_of(topic)
    if json:
        print_json({"topic": topic, "text": text})
        return
    if not sys.stdout.isatty():
        typer.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    with console.pager(styles=True):
        console.print(Markdown(text))


def _search_guides(query: str, *, json: bool) -> None:
    from dsearch.guide.search import search_guides

    sections = search_guides(query)
    if json:
        members = ("topic", "heading", "text")
        print_json([{name: getattr(section, name) for name in members} for section in sections])
        return
    if not sections:
        say("no guide has these words; list the topics with: dsearch guide")
    for section in sections:
        typer.echo(f"{section.topic}: {section.heading}")
        typer.echo(f"    {section.snippet}")


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
    revoke = command_line("keys revoke", key.id)
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
        make = command_line("keys create", "--name", "NAME")
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
            f"{command_line('keys create', '--name', 'NAME')}; or serve without keys, on this machine only: "
            f"{command_line('keys clear')}"
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

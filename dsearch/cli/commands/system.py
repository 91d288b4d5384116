"""`dsearch doctor`, `dsearch config` and `dsearch guide`."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.session import print_json, say
from dsearch.errors import DsearchError

if TYPE_CHECKING:
    from dsearch.config import Settings


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

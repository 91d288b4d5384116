"""`dsearch backup`, `dsearch restore`, `dsearch export`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dsearch.cli import options
from dsearch.cli.by_server import stays_here
from dsearch.cli.session import ProgressBars, opened_engine, print_json, say
from dsearch.errors import HomeLocked


def backup(
    to: Annotated[Path, typer.Argument(help="The folder to make; it must not be there.")],
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Copy a collection with its models and its feedback, while others write and search."""
    with opened_engine(home, readonly=True) as (engine, _), _writing_to(to):
        report = engine.backup(collection, to)
    if json:
        print_json(asdict(report))
        return
    index = f"generation {report.generation}" if report.generation else "no generation (it will be built)"
    typer.echo(
        f"{to}: {report.documents} documents as of operation {report.sequence}, {index}, "
        f"{len(report.models)} models, {report.size_bytes:,} bytes"
    )


def restore(
    source: Annotated[Path, typer.Argument(help="The folder of a backup.")],
    home: options.HomeFolder = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Make a collection of a backup, under its name; every digest is checked before it appears."""
    try:
        with opened_engine(home, readonly=False, threads=threads) as (engine, _):
            with ProgressBars() as on_progress:
                restored = engine.restore(source, on_progress)
            described = restored.describe()
    except HomeLocked as locked:
        raise stays_here(
            locked,
            "no request may name a folder of its machine: end it, restore, and start it again; or restore "
            f"into a home of its own, which another server can serve: dsearch restore {source} --home FOLDER",
        ) from None
    if json:
        print_json(described)
        return
    typer.echo(
        f"{described['name']}: {described['documents']} documents, generation {described['generation']}, "
        f"model {described['model']}"
    )


def export(
    collection: options.CollectionName = "default",
    to: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write [default: standard output].")
    ] = None,
    beir: Annotated[Path | None, typer.Option(help="A folder to write in the layout of BEIR.")] = None,
    filter: options.FilterText = None,
    home: options.HomeFolder = None,
) -> None:
    """Write the documents as JSON lines, which `dsearch index` reads."""
    from dsearch.errors import InvalidRequest

    if to is not None and beir is not None:
        raise InvalidRequest("--out and --beir; give one of the two")
    condition = options.filter_of(filter)
    with opened_engine(home, readonly=True) as (engine, _), _writing_to(beir or to or "standard output"):
        from dsearch.engine.exporting import export_beir, export_lines

        store = engine.collection(collection).store
        if beir is not None:
            count = export_beir(store, beir, condition)
        elif to is not None:
            with to.open("wb") as file:
                count = export_lines(store, file.write, condition)
        else:
            count = export_lines(store, sys.stdout.buffer.write, condition)
            sys.stdout.buffer.flush()
    say(f"{count} documents")


@contextmanager
def _writing_to(place: Path | str) -> Iterator[None]:
    """Say what cannot be written instead of showing where in the code that was noticed."""
    from dsearch.errors import InvalidRequest

    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InvalidRequest(f"{place} cannot be written ({error}); give another place") from error

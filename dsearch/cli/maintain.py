"""`dsearch verify`, `dsearch recover`, `dsearch compact`, `dsearch purge`, `dsearch stats`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.advice import for_this_home
from dsearch.cli.by_server import compact_by_server, server_of
from dsearch.cli.session import ProgressBars, opened_engine, print_json, say
from dsearch.errors import HomeLocked

_SHOWN = 20  # findings


def verify(
    collections: Annotated[
        list[str] | None, typer.Argument(help="Names [default: every collection].")
    ] = None,
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Read everything again: each digest, each file, the index against the store. Exit code 1: damage."""
    with opened_engine(home, readonly=True) as (engine, _):
        reports = [engine.verify(name) for name in collections or engine.names()]
    if json:
        print_json([{**asdict(one), "ok": one.ok} for one in reports])
    for one in reports if not json else []:
        found = f"{one.documents} documents, {one.embeddings} embeddings"
        files = f"{len(one.generations)} generations, {len(one.models)} models"
        typer.echo(f"{one.name}: {'whole' if one.ok else 'damaged'}: {found}, {files}")
        for damage in one.damage[:_SHOWN]:
            typer.echo(f"  {for_this_home(str(damage))}")
        if len(one.damage) > _SHOWN:
            typer.echo(f"  and {len(one.damage) - _SHOWN} more")
    if not reports:
        say("no collection yet")
    if not all(one.ok for one in reports):
        raise typer.Exit(1)


def recover(
    collection: Annotated[str, typer.Argument(help="Its name.")],
    home: options.HomeFolder = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Where acknowledged writes are missing and there is no backup: go on with what is there."""
    with opened_engine(home, readonly=False, threads=threads) as (engine, _), ProgressBars() as on_progress:
        recovered = engine.recover(collection, on_progress)
    if json:
        print_json(asdict(recovered))
        return
    if recovered.loss is None:
        typer.echo(f"{recovered.name}: no write is missing; nothing was changed")
        return
    say(recovered.loss)
    typer.echo(f"{recovered.name}: goes on with {recovered.documents} documents; index again what is missing")


def compact(
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Make the files small: one generation of what is there now, and a database without free space."""
    report = _compacted(collection, home, threads)
    if json:
        print_json(report)
        return
    typer.echo(
        f"{collection}: {report['bytes_before']:,} bytes before, {report['bytes_after']:,} now, "
        f"generation {report['generation']}"
    )
    if not report["complete"]:
        say(_left(report))


def purge(
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Make what was deleted or replaced unreadable: it is then in no file. Exit code 1: something is left."""
    report = _compacted(collection, home, threads)
    if json:
        print_json(report)
    elif report["complete"]:
        typer.echo(f"{collection}: {report['rows']} deleted rows are gone from every file")
    else:
        say(f"{collection}: {report['rows']} deleted rows are gone, but {_left(report)}")
    if not report["complete"]:
        raise typer.Exit(1)


def stats(
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Count what a collection holds and costs: documents, delta, generations, keys, bytes."""
    from dsearch.engine.statistics import statistics

    with opened_engine(home, readonly=True) as (engine, _):
        counted = statistics(engine.collection(collection))
        aliases = [alias for alias, name in engine.aliases().items() if name == counted["name"]]
    counted.pop("rebuild")  # builds start by themselves in a server alone
    if json:
        print_json({**counted, "aliases": aliases})
        return
    delta, keys = counted["delta"], counted["keys"]
    each = f", {counted['bytes_per_document']:,} a document" if counted["documents"] else ""
    lines = {
        "documents": f"{counted['documents']}, {counted['pending']} pending, {counted['deleted']} deleted",
        "delta": f"{delta['documents']} since the last build, {delta['share']:.1%} of it",
        "keys": described_keys(keys) or "not recorded: built by an older release",
        "bytes": f"{counted['bytes']:,}{each}",
        "model": f"{counted['model']} of {counted['models']} trained",
    }
    if aliases:
        lines["aliases"] = ", ".join(aliases)
    for name, line in lines.items():
        typer.echo(f"{name:<12}{line}")
    for one in counted["generations"]:
        live = ", live" if one["live"] else ""
        typer.echo(f"generation  {one['number']}: {one['documents']} documents, {one['bytes']:,} bytes{live}")


def described_keys(keys: dict[str, Any] | None) -> str:
    """How keys are kept and what was measured, in a line; nothing for what an older release has built."""
    if keys is None:
        return ""
    told = keys["kind"] if keys["kind"] == keys["asked"] else f"{keys['kind']} (by {keys['asked']})"
    if keys["recall_at_10"] is None:
        return told
    set_to = "".join(f", {name} {value}" for name, value in keys["parameters"].items())
    return (
        f"{told}{set_to}, recall@10 {keys['recall_at_10']:.3f}, {keys['queries_per_s']:,.0f} queries/s, "
        f"{keys['bytes_per_document']:,.0f} bytes a document"
    )


def _compacted(collection: str, home: Path | None, threads: int | None) -> dict[str, Any]:
    """`Compacted` as JSON, with `complete`."""
    try:
        with opened_engine(home, readonly=False, threads=threads) as (engine, _):
            from dsearch.engine.maintenance import compact

            with ProgressBars() as on_progress:
                return compact(engine.collection(collection), on_progress).to_dict()
    except HomeLocked as locked:
        with server_of(locked) as client:
            return compact_by_server(client, collection)


def _left(report: dict[str, Any]) -> str:
    held = ", ".join(map(str, report["held"]))
    if held:
        return f"generation {held} is read by another process; end that, and run this again"
    if report["models"]:
        versions = ", ".join(report["models"])
        return f"model {versions} has an index of its own with some of them; delete it, or train again"
    if report["kept"]:
        return f"{report['kept']} are needed by a generation; run this again"
    return "the database's log is read by another process; end that, and run this again"

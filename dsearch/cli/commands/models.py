"""`dsearch models`, `dsearch models delete`, `dsearch promote`, `dsearch rollback`, `dsearch refresh`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.commands.maintenance import described_keys
from dsearch.cli.remote import refresh_by_server, server_of
from dsearch.cli.session import ProgressBars, opened_engine, print_json
from dsearch.errors import HomeLocked
from dsearch.results import Model

models_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@models_app.callback()
def models(
    context: typer.Context,
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """List the versions: what each was trained from and on, which one answers, which did before."""
    if context.invoked_subcommand is not None:
        context.obj = collection, home
        return
    from dsearch.engine.calls import list_models

    with opened_engine(home, readonly=True) as (engine, _):
        target = engine.collection(collection)
        records = list_models(target).models
        history = target.store.model_history()
    if json:
        print_json(records)
        return
    for one in records:
        typer.echo(f"{'*' if one.live else ' '} {one.version:<4} {_described(one)}")
    if history:
        typer.echo(f"answered, the latest first: {', '.join([*history, 'v0'])}")


@models_app.command()
def delete(
    context: typer.Context,
    version: Annotated[str, typer.Argument(help="A version that is neither live nor a parent.")],
    collection: Annotated[
        str | None, typer.Option("--collection", "-c", help="The collection's name.")
    ] = None,
    home: options.HomeFolder = None,
) -> None:
    """Delete a version with its files. Its number is not given again."""
    of_group, home_of_group = context.obj
    name = collection or of_group
    try:
        with opened_engine(home or home_of_group, readonly=False) as (engine, _):
            engine.collection(name).delete_model(version)
    except HomeLocked as locked:
        with server_of(locked) as client:
            client.delete_model(name, version)
    typer.echo(f"{name}: {version} is deleted")


def rollback(
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
) -> None:
    """Let the version answer that did before the present one."""
    try:
        with opened_engine(home, readonly=False) as (engine, _):
            target = engine.collection(collection)
            before = target.live_model
            version = target.rollback()
    except HomeLocked as locked:
        with server_of(locked) as client:
            answer = client.rollback(collection)
        version, before = answer.model, answer.previous
    typer.echo(f"{collection}: {version} answers now, in place of {before}")


def promote(
    version: Annotated[str, typer.Argument(help="Version; v0 is the untrained model.")],
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
) -> None:
    """Let a version answer from now on."""
    try:
        with opened_engine(home, readonly=False) as (engine, _):
            engine.collection(collection).promote(version)
    except HomeLocked as locked:
        with server_of(locked) as client:
            client.promote(collection, version)
    typer.echo(f"{collection}: {version} answers now")


def refresh(
    collection: options.CollectionName = "default",
    kind: Annotated[
        str | None,
        typer.Option(help="Kind of index from now on: auto, Flat, SQ8, HNSW, IVF, … [default: as before]."),
    ] = None,
    recall: Annotated[
        float | None,
        typer.Option(help="Target recall@10 of an approximate kind [default: as before]."),
    ] = None,
    memory: Annotated[
        int | None, typer.Option(help="Memory limit of the keys in bytes, for auto [default: as before].")
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="queries.jsonl to tune by [default: sentences of the documents]."),
    ] = None,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
) -> None:
    """Rebuild the index from the stored embeddings, its keys projected by the live head."""
    asked = None
    if queries is not None:
        from dsearch.corpus import Problems, read_queries

        asked = [query.text for query in read_queries(queries, Problems())]
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    try:
        with opened_engine(home, readonly=False, **own) as (engine, _):
            target = engine.collection(collection)
            with ProgressBars() as on_progress:
                number = target.refresh(
                    on_progress, kind=kind, recall_target=recall, memory_bytes=memory, queries=asked
                )
            live, kept = target.live_model, described_keys(target.describe().keys)
    except HomeLocked as locked:
        given = {"kind": kind, "recall_target": recall, "memory_bytes": memory, "queries": asked}
        with server_of(locked) as client:
            built = refresh_by_server(client, collection, **given)
        number, live, kept = built["generation"], built["model"], described_keys(built["keys"])
    typer.echo(f"{collection}: generation {number} is live, with the keys of model {live}: {kept}")


def _described(model: Model) -> str:
    record = model.record
    if not record:
        return "untrained"
    if record.get("scope") == "uploaded":
        problem = "" if model.problem is None else f"; no longer served: {model.problem}"
        return f"uploaded, from {model.parent}; gate: none{problem}"
    origin = f"from {model.parent}, {record.get('examples', '?')} queries"
    if record.get("scope") == "tune":
        bm25 = "" if record.get("k1") is None else f"k1 {record['k1']:g}, b {record['b']:g}, "
        origin = (
            f"tuned {origin}, keyword weight {record['keyword_weight']:g}, {bm25}"
            f"hop strength {record['hop_strength']:g}, seed {record['seed']}"
        )
    else:
        chosen, scope = record.get("options", {}), record.get("scope", "head")
        origin = (
            f"{scope} trained {origin}, {record.get('epochs', '?')} epochs, "
            + ("" if scope == "full" else f"{chosen.get('objective', 'listwise')}, ")
            + ("" if record.get("share", 1.0) == 1.0 else f"{record['share']:.0%} of it served, ")
            + _keywords(record.get("keyword_factor", 1.0))
            + f"seed {chosen.get('seed', '?')}"
        )
    gate = record.get("gate", {}).get("verdict", "none")
    problem = "" if model.problem is None else f"; no longer served: {model.problem}"
    return f"{origin}; gate: {gate}, {record.get('verdict', '')}{problem}"


def _keywords(factor: float) -> str:
    return "" if factor == 1.0 else f"keywords {factor:g} times as high, "

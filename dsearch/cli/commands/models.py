"""`dsearch models`, `dsearch promote`, `dsearch rollback`, `dsearch remember`, `dsearch refresh`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.commands.evaluate import read_judgements
from dsearch.cli.commands.maintenance import described_keys
from dsearch.cli.engine import finished, local_engine, writing
from dsearch.cli.session import print_json, say, show_outcome
from dsearch.cli.training import DEFAULT_SPLIT, epochs_text, live_line, require_data, undo_line
from dsearch.errors import Command, InvalidRequest, amount
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
    with local_engine(home, readonly=True) as engine:
        listed = engine.models(collection)
        history = engine.engine.collection(collection).store.model_history()
    if json:
        print_json(listed.models)
        return
    for model in listed.models:
        typer.echo(f"{'*' if model.live else ' '} {model.version:<4} {_described(model)}")
    if history:
        typer.echo(f"answered, the latest first: {', '.join([*history, 'v0'])}")
    if (tries := listed.tries) is not None and tries.refusals:
        typer.echo(
            f"judged queries: refusals by the {tries.queries:,} used last, since they let one pass: "
            f"{tries.refusals:.3g}; {tries.left:.0%} of alpha is left, and judgements of other queries "
            "refill it"
        )


@models_app.command()
def delete(
    context: typer.Context,
    version: Annotated[str, typer.Argument(help="A version that is not live.")],
    collection: options.CollectionOrGroup = None,
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Delete a version with its files. Its number is not given again."""
    name, at = options.of_group(context, collection, home)
    with writing(at) as engine:
        engine.delete_model(name, version)
    show_outcome(f"{name}: {version} is deleted", {"model": version, "deleted": True}, json=json)


def rollback(
    rows: Annotated[
        int | None,
        typer.Option(metavar="SEQUENCE", help="Drop remembered queries of later operations; versions stay."),
    ] = None,
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Let the version answer that did before the present one; with --rows take back remembered queries."""
    with writing(home) as engine:
        if rows is None:
            answer = engine.rollback(collection)
            content = {"model": answer.model, "previous": answer.previous}
            text = f"{answer.model} is live now, in place of {answer.previous}"
        else:
            done = engine.rollback_rows(collection, rows)
            content = asdict(done)
            text = f"{amount(done.dropped, 'remembered query')} dropped, {done.remaining} left"
    show_outcome(f"{collection}: {text}", content, json=json)


def promote(
    version: Annotated[str, typer.Argument(help="Version; v0 is the untrained model.")],
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Let a version answer from now on."""
    with writing(home) as engine:
        engine.promote(collection, version)
    show_outcome(f"{collection}: {version} is live now", {"model": version}, json=json)


def remember(
    query: Annotated[str | None, typer.Argument(help="A query.")] = None,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of the documents that answer it.")] = None,
    data: Annotated[Path | None, typer.Option(help="A BEIR folder of judged queries.")] = None,
    split: Annotated[str, typer.Option(help="Judgements to remember: qrels/SPLIT.tsv.")] = DEFAULT_SPLIT,
    accept: Annotated[
        bool, typer.Option("--accept", help="Begin a memory with default settings where there is none.")
    ] = False,
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    json: options.AsJson = False,
) -> None:
    """Let later searches find what answers a query, at once and without training.

    The query becomes a row of the live version's query memory, which dsearch train fits.
    """
    require_data(data, split=split)
    queries, judgements = _judged(query, ids, data, split)
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with writing(home, own) as engine:
        done = engine.remember(collection, queries, judgements, accept=accept)
    if json:
        print_json(asdict(done))
        return
    for reason, count in done.left_out.items():
        say(f"left out: {reason}: {count}")
    judged = f"{amount(done.judgements, 'judgement')} of {amount(done.queries, 'query')}"
    typer.echo(f"{collection}: {done.model} remembers {judged}")
    if done.model != done.previous:  # without its rows it answers as the one before
        typer.echo(live_line(done.model, None))
    typer.echo(undo_line(str(Command("rollback", ("--rows", str(done.sequence - 1), "-c", collection)))))


def _judged(
    query: str | None, ids: list[str] | None, data: Path | None, split: str
) -> tuple[dict[str, str], dict[str, dict[str, float]]]:
    if (data is None) == (query is None) or (query is not None and not ids):
        raise InvalidRequest("give a query and the ids of documents that answer it, or --data FOLDER")
    if data is None:
        assert query is not None
        return {"q": query}, {"q": dict.fromkeys(ids or (), 1.0)}
    judged = read_judgements(data, split, None)
    return {query.id: query.text for query in judged.queries}, {
        id: dict(of) for id, of in judged.qrels.items()
    }


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
    json: options.AsJson = False,
) -> None:
    """Rebuild the index from the stored embeddings, its keys projected by the live head."""
    texts = None
    if queries is not None:
        from dsearch.corpus import Problems, read_queries

        texts = [query.text for query in read_queries(queries, Problems())]
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with writing(home, own) as engine:
        task = engine.refresh(collection, kind=kind, recall_target=recall, memory_bytes=memory, queries=texts)
        built = finished(engine, task)
    text = (
        f"{collection}: generation {built['generation']} is live, with the keys of model {built['model']}: "
        f"{described_keys(built['keys'])}"
    )
    show_outcome(text, {name: built[name] for name in ("generation", "model", "keys")}, json=json)


def _described(model: Model) -> str:
    record = model.record
    if not record:
        return "untrained"
    problem = "" if model.problem is None else f"; no longer served: {model.problem}"
    if record.get("field") is not None:
        verdict = f"{record.get('gate', {}).get('verdict', 'none')}, {record.get('verdict', '')}"
        learned = f"values of {record['field']!r} learned behind {model.parent}"
        return f"{learned}, {amount(record.get('examples', '?'), 'document')}; gate: {verdict}{problem}"
    if record.get("scope") == "uploaded":
        return f"uploaded, from {model.parent}; gate: none{problem}"
    origin = f"from {model.parent}, {_queries(record)}"
    if record.get("scope") == "tune":
        bm25 = "" if record.get("k1") is None else f"k1 {record['k1']:g}, b {record['b']:g}, "
        origin = (
            f"tuned {origin}, keyword weight {record['keyword_weight']:g}, {bm25}"
            f"hop strength {record['hop_strength']:g}, seed {record['seed']}"
        )
    elif record.get("scope") == "second stage":
        origin = f"second stage behind {model.parent}, from {_queries(record)}"
    elif record.get("scope") == "remember":
        origin = f"{model.parent} with a query memory, begun with default settings"
    elif record.get("scope") == "layer":
        encoder = " and query encoder" if "query_encoder" in record else ""
        origin = f"head{encoder} trained from {model.parent} by a loss of its own"
    else:
        chosen, scope = record.get("options", {}), record.get("scope", "head")
        origin = (
            f"{scope} trained {origin}, {epochs_text(record.get('epochs', '?'))}, "
            + ("" if scope == "full" else f"{chosen.get('objective', 'listwise')}, ")
            + ("" if record.get("share", 1.0) == 1.0 else f"{record['share']:.0%} of it served, ")
            + _keywords(record.get("keyword_factor", 1.0))
            + f"seed {chosen.get('seed', '?')}"
        )
    gate = record.get("gate", {}).get("verdict", "none")
    verdict = f", {record['verdict']}" if record.get("verdict") else ""
    return f"{origin}; gate: {gate}{verdict}{problem}"


def _queries(record: Mapping[str, Any]) -> str:
    return amount(record["examples"], "query", "queries") if "examples" in record else "? queries"


def _keywords(factor: float) -> str:
    return "" if factor == 1.0 else f"keywords {factor:g} times as high, "

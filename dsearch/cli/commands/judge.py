"""`dsearch judge` and `dsearch judgements`: one's own judgements; they work beside a running server."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsearch.cli import options
from dsearch.cli.engine import local_engine, reading
from dsearch.cli.session import command_line, opened_engine, print_json, say, show_outcome
from dsearch.errors import Command, InvalidRequest, InvalidSource, amount

if TYPE_CHECKING:
    from dsearch.types import OwnJudgements

judgements = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

ENOUGH_TO_TUNE = 24  # judged queries
WORDS = {0: "does not fit", 1: "fits in part", 2: "fits", 3: "is the answer"}
_Client = Annotated[str, typer.Option("--client", help="Name that the judgements stand under.")]
_OneClient = Annotated[
    str | None, typer.Option("--client", help="Only those under this name, as terminal [default: all].")
]


def judge(
    query: Annotated[str, typer.Argument(help="The query.")],
    ids: Annotated[list[str], typer.Argument(help="Ids of documents.")],
    grade: Annotated[
        int,
        typer.Option(
            "--grade", "-g", min=0, max=3, help="3: the answer, 2: fits, 1: fits in part, 0: does not fit."
        ),
    ] = 3,
    client: _Client = "terminal",
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Judge documents for a query; the latest judgement of a document counts."""
    if not query.strip():
        raise InvalidRequest("an empty query; give the words that were searched for")
    with opened_engine(home, readonly=True) as (engine, _):
        from dsearch.training.judging import own_judgements, write_opinions

        target = engine.collection(collection)
        for id in ids:
            target.store.get(id)
        of = {"q": dict.fromkeys(ids, float(grade))}
        written = write_opinions(target, {"q": query}, of, client)
        own = own_judgements(target)
    content = {**asdict(written), "answered": own.answered, "missing": own.missing}
    text = f"{collection}: {', '.join(ids)} {WORDS[grade]}" + (
        "" if written.unchanged < len(ids) else ", as before"
    )
    show_outcome(text, content, json=json)
    if not json:
        say(_still_missing(own, collection))


@judgements.callback()
def listed(
    context: typer.Context,
    client: _OneClient = None,
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """List judgements made here, on the page and over HTTP, and how many training still needs."""
    if context.invoked_subcommand is not None:
        context.obj = collection, home
        return
    with local_engine(home, readonly=True) as engine:
        own = engine.own_judgements(collection, client_id=client)
    if json:
        print_json(asdict(own))
        return
    for query, of in own.judgements.items():
        typer.echo(own.queries[query])
        for document, grade in sorted(of.items(), key=lambda item: -item[1]):
            typer.echo(f"  {grade:g}  {document}")
    say(_still_missing(own, collection) if own.judgements else f"{collection}: {_nothing(collection)}")


@judgements.command()
def export(
    context: typer.Context,
    output: Annotated[
        Path | None,
        typer.Argument(
            help="File to create (.csv .tsv .jsonl .trec), or folder (BEIR) [default: CSV to stdout]."
        ),
    ] = None,
    client: _OneClient = None,
    collection: options.CollectionOrGroup = None,
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Write judgements as `--data` of `train`, `tune` and `evaluate` takes them."""
    from dsearch.evaluation.judged_data import table_of, write_judged_data

    name, at = options.of_group(context, collection, home)
    with local_engine(at, readonly=True) as engine:
        own = engine.own_judgements(name, client_id=client)
    count = sum(map(len, own.judgements.values()))
    if output is None:
        sys.stdout.write(table_of("jsonl" if json else "csv", own.queries, own.judgements))
        return
    if not count:
        raise InvalidRequest(f"{name}: {_nothing(name)}")
    try:
        write_judged_data(output, own.queries, own.judgements)
    except OSError as error:
        raise InvalidRequest(f"{output}: {error.strerror or error}; name another file") from error
    text = f"{output}: {amount(count, 'judgement')} of {amount(len(own.judgements), 'query', 'queries')}"
    show_outcome(text, {"queries": len(own.judgements), "judgements": count}, json=json)
    if not json:
        say(f"learn from them: {command_line('train', '--data', str(output), '-c', name)}")


@judgements.command("import")
def import_(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(help="CSV, TSV, JSON lines or TREC of query, document and grade; a BEIR folder.")
    ],
    split: Annotated[str, typer.Option(help="Of a BEIR folder: qrels/SPLIT.tsv.")] = "train",
    client: _Client = "terminal",
    collection: options.CollectionOrGroup = None,
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Keep judgements of a file here; unknown documents and contradictions are named and left out."""
    name, at = options.of_group(context, collection, home)
    with opened_engine(at, readonly=True) as (engine, _):
        from dsearch.training import checked_judgements
        from dsearch.training.judging import nearest_grade, own_judgements, write_opinions

        target = engine.collection(name)
        checked = checked_judgements(target, source, split)
        present = target.store.rows_of(sorted({id for of in checked.qrels.values() for id in of}))
        of_present = {
            query: {id: grade for id, grade in of.items() if id in present}
            for query, of in checked.qrels.items()
            if checked.queries.get(query, "").strip()
        }
        if not any(of_present.values()):
            raise InvalidSource(
                f"{source}: no judgement was kept, since every row is left out\n{checked.report.to_text()}\n"
                f"Name documents by their ids in collection {name!r}, and look them up",
                hint=Command("search", ("TEXT", "-c", name, "--json")),
            )
        written = write_opinions(target, checked.queries, of_present, client)
        own = own_judgements(target)
    grades = [grade for of in of_present.values() for grade in of.values()]
    rounded = sum(nearest_grade(grade) != grade for grade in grades)
    content = {**asdict(written), "rounded": rounded, "left_out": dict(checked.report.counts)}
    content |= {"answered": own.answered, "missing": own.missing}
    if json:
        print_json(content)
        return
    unanswered = checked.report.counts.pop("queries without a positive", 0)  # they are judged all the same
    if checked.report.counts:
        say(checked.report.to_text())
    if unanswered:
        say(f"{amount(unanswered, 'query has', 'queries have')} no document that fits")
    if rounded:
        say(f"{amount(rounded, 'grade is', 'grades are')} kept as the nearest of 0, 1, 2 and 3")
    counts = f"{written.new} new, {written.changed} changed, {written.unchanged} as before"
    typer.echo(f"{name}: {amount(len(grades), 'judgement')}: {counts}")
    say(_still_missing(own, name))


@judgements.command("next")
def next_(
    context: typer.Context,
    version: Annotated[
        str | None, typer.Option(help="Version to compare with the live one [default: the latest other one].")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-k", min=1, max=100, help="Number of queries.")] = 10,
    client: _OneClient = None,
    collection: options.CollectionOrGroup = None,
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Name the queries to judge next: those on which two versions differ most."""
    name, at = options.of_group(context, collection, home)
    with reading(at) as engine:
        suggested = engine.queries_to_judge(name, version=version, limit=limit, client_id=client)
    if json:
        print_json(asdict(suggested))
        return
    between = f"{suggested.model} and {suggested.against}"
    if not suggested.queries:
        say(f"{name}: {between} give the same hits for every query known; ask others, or train a version")
        return
    for each in suggested.queries:
        typer.echo(
            f"{each.difference:4.0%}  {each.query}" + ("" if each.logged else "  (made from a document)")
        )
    say(f"{between} differ most on these; judge one with: {command_line('judge', 'QUERY', 'ID', '-c', name)}")


def _nothing(collection: str) -> str:
    return f"nothing is judged yet; begin with: {command_line('judge', 'QUERY', 'ID', '-c', collection)}"


def _still_missing(own: OwnJudgements, collection: str) -> str:
    judged = f"{amount(own.answered, 'judged query has', 'judged queries have')} an answer"
    file = command_line("judgements export", "FILE", "-c", collection)
    if not own.missing:
        learn = command_line("train", "--data", "FILE", "-c", collection)
        return f"{judged}, enough to tell a gain from chance: {file}, then {learn}"
    missing = amount(own.missing, "is missing", "are missing")
    said = f"{judged}; {missing} until a training can be told from chance"
    if own.answered < ENOUGH_TO_TUNE:
        return said
    tune = command_line("tune", "--data", "FILE", "-c", collection)
    return f"{said}; with fewer, tuning gains more: {file}, then {tune}"

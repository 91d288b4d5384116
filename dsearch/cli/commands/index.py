"""`dsearch index`, `dsearch collections`, `dsearch facets`, `dsearch update` and `dsearch delete`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.commands.maintenance import described_keys
from dsearch.cli.remote import index_by_server, server_of, stays_here
from dsearch.cli.session import ProgressBars, as_json, opened_engine, print_json, say, typed
from dsearch.errors import DsearchError, HomeLocked
from dsearch.results import CollectionDamaged, CollectionInfo, Written

if TYPE_CHECKING:
    from dsearch.engine import SearchEngine


def index(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="JSONL, CSV, Parquet, text, Markdown, HTML and PDF files, folders and patterns of these, "
            "BEIR folders, Hugging Face datasets saved to disk, or - for standard input."
        ),
    ],
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
    id_column: Annotated[str | None, typer.Option(help="Field or column of the id.")] = None,
    title_column: Annotated[str | None, typer.Option(help="Field or column of the title.")] = None,
    text_column: Annotated[str | None, typer.Option(help="Field or column of the text.")] = None,
    value_column: Annotated[
        str | None, typer.Option(help="Field or column of the value: a number or a list of numbers.")
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(help="Language of a new collection, for keyword search [default: english]."),
    ] = None,
    passage_tokens: Annotated[
        int | None,
        typer.Option(help="New collection: maximum tokens of a passage [default: the encoder's window]."),
    ] = None,
    overlap: Annotated[
        int | None,
        typer.Option(help="New collection: maximum tokens that passages share [default: an eighth]."),
    ] = None,
    no_passages: Annotated[
        bool,
        typer.Option("--no-passages", help="New collection: truncate long documents."),
    ] = False,
    kind: Annotated[
        str | None,
        typer.Option(help="New collection: kind of index: auto, Flat, SQ8, HNSW, IVF, … [default: Flat]."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad record.")] = False,
    ray: Annotated[
        str | None,
        typer.Option(help="Let a Ray cluster encode: HOST:PORT of its head node, or auto (extra ray)."),
    ] = None,
    workers: Annotated[int, typer.Option(help="With --ray: number of encoders in the cluster.", min=1)] = 1,
    json: options.AsJson = False,
) -> None:
    """Index documents. Run again, it goes on where it stopped and encodes only what is new."""
    from dsearch.corpus import Problems, RecordFields, read_sources
    from dsearch.engine import PassageOptions
    from dsearch.store import refusal

    problems = Problems(strict=strict, keep=20, on_problem=_Warner())
    fields = RecordFields(id=id_column, title=title_column, text=text_column, value=value_column)
    # A missing file is noticed here.
    documents = read_sources(sources, problems=problems, fields=fields, refuse=refusal)
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    try:
        with opened_engine(home, readonly=False, **own) as (engine, settings):
            passages = PassageOptions(passage_tokens, overlap, none=no_passages)
            target = engine.collection_or_new(collection, language=language, passages=passages, kind=kind)
            with ProgressBars() as on_progress:
                if ray is None:
                    report = target.ingest(documents, on_progress)
                else:
                    from dsearch.cli.commands.serve import ingest_on_ray

                    report = ingest_on_ray(target, documents, ray, settings, workers, on_progress)
            described = target.describe()
    except HomeLocked as locked:
        if ray is not None:
            raise stays_here(locked, "it encodes what it is sent: leave out --ray, or end it first") from None
        cut = {"tokens": passage_tokens, "overlap": overlap, "none": no_passages or None}
        given = {name: value for name, value in cut.items() if value is not None}
        with server_of(locked) as client:
            made = {"language": language, "passages": given or None, "kind": kind}
            info, written = index_by_server(client, collection, documents, made)
        _show_written(info, written, problems.count, json=json)
        return
    if json:
        skips = {"skipped": problems.count, "passed_over": dict(problems.passed_over)}
        print_json({**asdict(described), **asdict(report), **skips})
        return
    if problems.passed_over:
        say(
            f"passed over {problems.passed_over.total()} files of other kinds: {_kinds(problems.passed_over)}"
        )
    rate = f" ({report.encoded / report.elapsed_s:.0f} documents/s)" if report.encoded else ""
    skipped = f", {problems.count} skipped" if problems.count else ""
    typer.echo(
        f"{collection}: {described.documents} documents, generation {described.generation}: "
        f"{report.inserted} new, {report.updated} changed, {report.unchanged} unchanged{skipped}, "
        f"{report.encoded} encoded in {report.elapsed_s:.1f} s{rate}"
    )
    if described.documents == 0:
        say(
            "nothing was found to index; see the messages above, or dsearch index --help for what can be read"
        )


def _show_written(info: CollectionInfo, written: Written, skipped: int, *, json: bool) -> None:
    """Print the result of a write by a server, which encodes as it stores and builds when due."""
    for problem in written.problems:
        say(f"refused document {problem.line}: {problem.detail}")
    if json:
        print_json({**asdict(info), **asdict(written), "skipped": skipped})
        return
    left_out = f", {skipped + written.refused} skipped" if skipped + written.refused else ""
    typer.echo(
        f"{info.name}: {info.documents} documents, generation {info.generation}: {written.inserted} new, "
        f"{written.updated} changed, {written.unchanged} unchanged{left_out}"
    )


def _kinds(passed_over: Counter[str]) -> str:
    """For example `3 .png, 2 without suffix`: the most frequent first."""
    shown = [f"{count} {suffix or 'without suffix'}" for suffix, count in passed_over.most_common(8)]
    return ", ".join(shown) + (", …" if len(passed_over) > len(shown) else "")


def collections(home: options.HomeFolder = None, json: options.AsJson = False) -> None:
    """List the collections. Exit code 1: one of them cannot be opened."""
    with opened_engine(home, readonly=True) as (engine, _):
        described = [_described(engine, name) for name in engine.names()]
        aliases = engine.aliases()
    unreadable = any(isinstance(one, CollectionDamaged) for one in described)
    if json:
        print_json(described)
        raise typer.Exit(int(unreadable))
    for one in described:
        if isinstance(one, CollectionDamaged):
            typer.echo(f"{one.name}: {one.problem['detail']}")
            continue
        state = f"generation {one.generation}, model {one.model}"
        keys = f", keys {told}" if (told := described_keys(one.keys)) else ""
        typer.echo(f"{one.name}: {one.documents} documents, {state}{keys}")
    for alias, target in sorted(aliases.items()):
        typer.echo(f"{alias}: another name of {target}")
    if not described:
        say(f"no collection yet; make one with: {typed('index', 'SOURCE', '-c', 'NAME')}")
    raise typer.Exit(int(unreadable))


def _described(engine: SearchEngine, name: str) -> CollectionInfo | CollectionDamaged:
    """As the service describes it: one that is damaged keeps nobody from the others."""
    try:
        return engine.collection(name).describe()
    except DsearchError as error:
        return CollectionDamaged.of(name, error)


class _Warner:
    """Shows the first problems and says when it stops."""

    def __init__(self, shown: int = 20):
        self._left = shown

    def __call__(self, problem: object) -> None:
        self._left -= 1
        if self._left >= 0:
            say(f"skipped {problem}")
        elif self._left == -1:
            say("more records were skipped; only their number follows")


def facets(
    fields: Annotated[list[str], typer.Argument(help="Fields of the metadata, as dotted paths.")],
    collection: options.CollectionName = "default",
    filter: options.FilterText = None,
    limit: Annotated[int, typer.Option("-k", "--limit", help="Values of each field, 1 to 1000.")] = 10,
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Count the values that documents have in fields of their metadata."""
    condition = options.filter_of(filter)
    with opened_engine(home, readonly=True) as (engine, _):
        from dsearch.engine.calls import count_facets

        counted = count_facets(engine.collection(collection), fields, filter=condition, limit=limit)
    if json:
        print_json(counted)
        return
    for field, values in counted.facets.items():
        typer.echo(field)
        for value in values:
            typer.echo(f"{value.documents:>8}  {as_json(value.value)}")
    say(f"{counted.documents} documents")


def update(
    id: Annotated[str, typer.Argument(help="Id of the document.")],
    metadata: Annotated[str, typer.Argument(help="Changes as a JSON object; null removes a field.")],
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Change part of a document's metadata; its text and embedding stay."""
    from dsearch.errors import HomeLocked

    changes: Any = options.json_of(metadata, "metadata", '{"year": 2018, "draft": null}')
    try:
        with opened_engine(home, readonly=False) as (engine, _):
            from dsearch.engine.calls import change_metadata

            changed = change_metadata(engine.collection(collection), id, changes)
    except HomeLocked as locked:
        with server_of(locked) as client:
            changed = client.update_metadata(collection, id, changes)
    if json:
        print_json(changed)
        return
    typer.echo(f"{collection}: {id} has {as_json(changed.metadata)}")


def delete(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of documents.")] = None,
    collection: options.CollectionName = "default",
    filter: options.FilterText = None,
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Delete documents by id, or all that a filter finds."""
    from dsearch.errors import HomeLocked, InvalidRequest

    if bool(ids) == (filter is not None):
        raise InvalidRequest(
            f"{'ids and --filter' if ids else 'neither ids nor --filter'}; give one of the two"
        )
    condition: Any = options.filter_of(filter)  # checked by the deletion
    try:
        with opened_engine(home, readonly=False) as (engine, _):
            target = engine.collection(collection)
            receipt = target.delete(ids) if ids else target.delete_matching(condition)
    except HomeLocked as locked:
        with server_of(locked) as client:
            receipt = client.delete_many(collection, ids=ids or None, filter=condition)
    if json:
        print_json({"sequence": receipt.sequence, "deleted": receipt.deleted, "missing": receipt.missing})
        return
    missing = f", {receipt.missing} were not there" if receipt.missing else ""
    typer.echo(f"{collection}: {receipt.deleted} deleted{missing}")

"""`dsearch index`, `dsearch collections`, `dsearch facets`, `dsearch update` and `dsearch delete`."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.commands.maintenance import described_keys
from dsearch.cli.engine import in_process, is_there, reading, writing
from dsearch.cli.output import tell_prompts, tell_waiting
from dsearch.cli.session import (
    ProgressBars,
    as_json,
    as_rate,
    opened_engine,
    print_json,
    say,
    typed,
    with_home,
)
from dsearch.errors import DsearchError, InvalidRequest, amount
from dsearch.results import CollectionDamaged, CollectionInfo, WriteResult

if TYPE_CHECKING:
    from dsearch.cli.folders import Folders
    from dsearch.engine import Collection, SearchEngine
    from dsearch.engine.indexing.ingest import Ingestion


def index(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folders, files (text, Markdown, HTML, PDF, Word, e-mail, source code, notebooks, CSV, "
            "JSON, JSON lines, Parquet, …), patterns of these, BEIR folders, Hugging Face datasets saved to "
            "disk, or - for standard input [default: nothing new; what an interrupted run left]."
        ),
    ] = None,
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
    embedding_column: Annotated[
        str | None,
        typer.Option(
            help="Field or column of an embedding of your own: a list of numbers, scaled to length 1; a new "
            "collection takes its dimension from the first."
        ),
    ] = None,
    type: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            help="COLUMN=text, number or boolean; repeatable [default: a CSV column whose first 1,000 cells "
            "are numbers is one, likewise booleans].",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Add only: documents whose files are gone stay.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Delete documents whose files are gone without asking.")
    ] = False,
    ignored: Annotated[bool, typer.Option("--ignored", help="Read what .gitignore files name, too.")] = False,
    language: options.Language = None,
    search_fields: options.SearchFields = None,
    passage_tokens: options.PassageTokens = None,
    overlap: options.Overlap = None,
    no_passages: options.NoPassages = False,
    kind: options.KeyKind = None,
    second_stage: Annotated[
        bool,
        typer.Option(
            "--second-stage",
            help="Keep the documents' tokens, from now on and of those that are there, for searches with "
            "--stages 2; without sources, of those that are there.",
        ),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad record.")] = False,
    ray: Annotated[
        str | None,
        typer.Option(help="Let a Ray cluster encode: HOST:PORT of its head node, or auto (extra ray)."),
    ] = None,
    workers: Annotated[int, typer.Option(help="With --ray: number of encoders in the cluster.", min=1)] = 1,
    json: options.AsJson = False,
) -> None:
    """Index documents; run again, it goes on where it stopped and encodes only what is new.

    A folder is mirrored: documents whose files are gone from it are deleted. Exit code 1: nothing could be
    indexed, or more than a tenth would be deleted and nobody was there to ask.
    """
    from dsearch.cli.folders import (
        Folders,
        delete_by_server,
        documents_of,
        index_by_server,
        with_dimension,
    )
    from dsearch.config import load_settings
    from dsearch.corpus import Problems, RecordFields, parse_types, read_sources
    from dsearch.corpus.mirror import FROM_FOLDERS
    from dsearch.store import refusal

    problems = Problems(strict=strict, keep=20, on_problem=_Warner())
    fields = RecordFields(
        id=id_column,
        title=title_column,
        text=text_column,
        value=value_column,
        embedding=embedding_column,
        types=parse_types(type or []),
    )
    if second_stage and ray is not None:
        raise InvalidRequest(
            "--second-stage with --ray, whose workers give no token states; leave one of them out: "
            f"{typed('index', '-c', collection, '--second-stage')} adds the tokens afterwards"
        )
    folders = Folders(problems, keep=keep, yes=yes)
    # A missing file is noticed here.
    documents = read_sources(
        sources or [],
        problems=problems,
        fields=fields,
        refuse=refusal,
        mirror=folders.mirror,
        ignored=ignored,
    )
    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    cut = {"tokens": passage_tokens, "overlap": overlap, "none": no_passages or None}
    creation: dict[str, Any] = {
        "language": language,
        "passages": {name: value for name, value in cut.items() if value is not None} or None,
        "kind": kind,
        "dimension": None,
        "search_fields": options.field_names(search_fields),
    }
    with writing(home, own, stays=_reason_to_stay(sources, ray, second_stage=second_stage)) as engine:
        if sources and embedding_column is not None and not is_there(engine, collection):
            documents, creation["dimension"] = with_dimension(documents)
        local = in_process(engine)
        if local is None:
            folders.mirror.learn(documents_of(home, collection))
            info, written = index_by_server(engine, collection, documents, creation)
            deleted = delete_by_server(engine, collection, folders.obsolete(nullcontext))
            if deleted:
                info = engine.collection(collection)
            prompts = (engine.statistics(collection)["encoder"] or {}).get("prompts")
            refused = written.refused
            for problem in written.problems:
                say(f"refused document {problem.line}: {problem.detail}")
        else:
            if sources:
                local.create_collection(collection, **creation)
            target = local.engine.collection(collection)
            if sources:
                folders.mirror.learn(target.store.export(FROM_FOLDERS))
            bars = ProgressBars()
            with bars as on_progress:
                gone = partial(folders.obsolete, bars.paused)
                try:
                    if ray is None:
                        written = target.ingest(documents, on_progress, gone, second_stage=second_stage)
                    else:
                        from dsearch.cli.commands.serve import ingest_on_ray

                        settings = load_settings(home=home, **own)
                        written = ingest_on_ray(target, documents, ray, settings, workers, on_progress, gone)
                except KeyboardInterrupt:
                    if pending := target.store.count().pending:
                        tell_waiting(pending, collection)
                    raise
            info, deleted, refused = target.describe(), written.deleted, 0
            calibrate(target)
            prompts = (target.encoder_in_use() or {}).get("prompts")
            if not sources and not written.encoded and not second_stage:
                say("no documents were waiting: every one can be found")
        tell_prompts(prompts)
    _show(info, written, deleted, folders, refused, json=json, resumed=not sources)


def _reason_to_stay(sources: list[str] | None, ray: str | None, *, second_stage: bool) -> str | None:
    """The reason why no server does it; None where one does."""
    if second_stage:
        return "it keeps tokens only of collections that have them: end it"
    if ray is not None:
        return "it encodes the documents itself: leave out --ray, or end it first"
    if not sources:
        return (
            "it indexes what commands send it: name a file or a folder; to finish an interrupted run, end it "
            "first"
        )
    return None


def calibrate(target: Collection) -> None:
    """Estimate what answers look like that are right; without an estimate answers only lack a line."""
    from dsearch.training.confidence import calibrate_by_documents

    try:
        calibrate_by_documents(target)
    except (DsearchError, OSError) as error:
        say(f"answers do not say where nothing fits: {error}")


def _show(
    info: CollectionInfo,
    written: WriteResult | Ingestion,
    deleted: int,
    folders: Folders,
    refused: int,
    *,
    json: bool,
    resumed: bool = False,
) -> None:
    """Print the result of a run.

    Raises:
        Exit: code 1, for a run that read no document, or that deleted nothing for want of consent.
    """
    problems, read = folders.problems, written.inserted + written.updated + written.unchanged
    failed = typer.Exit(int((not read and not resumed) or folders.refused > 0))
    if json:
        skips = {
            "skipped": problems.count,
            "passed_over": dict(problems.passed_over),
            "remarks": [str(remark) for remark in problems.remarks],
        }
        folder = {"deleted": deleted, "not_deleted": folders.refused, "renamed": folders.mirror.moved}
        print_json({**asdict(info), **asdict(written), **skips, **folder})
        raise failed
    if problems.passed_over:
        say(
            f"passed over {amount(problems.passed_over.total(), 'file')} of other "
            f"kinds: {_kinds(problems.passed_over)}"
        )
    for remark in problems.remarks:
        say(f"note: {remark}")
    folders.tell(info.name)
    rate = ""
    if not isinstance(written, WriteResult):
        speed = f" ({as_rate(written.encoded / written.elapsed_s)} documents/s)" if written.encoded else ""
        rate = f", {written.encoded} encoded in {written.elapsed_s:.1f} s{speed}"
    left_out = problems.count + refused
    typer.echo(
        f"{info.name}: {amount(info.documents, 'document')}, generation {info.generation}: "
        f"{written.inserted} new, {written.updated} changed, {written.unchanged} unchanged"
        + (f", {deleted} deleted" if deleted else "")
        + (f", {left_out} skipped" if left_out else "")
        + rate
    )
    if not read and not resumed:
        say(
            "nothing was found to index; see the messages above, or dsearch index --help for what can be read"
        )
    raise failed


def _kinds(passed_over: Counter[str]) -> str:
    """For example `3 .png, 2 without suffix`: the most frequent first."""
    counts = [f"{count} {suffix or 'without suffix'}" for suffix, count in passed_over.most_common(8)]
    return ", ".join(counts) + (", …" if len(passed_over) > len(counts) else "")


def collections(home: options.HomeFolder = None, json: options.AsJson = False) -> None:
    """List the collections. Exit code 1: one of them cannot be opened."""
    with opened_engine(home, readonly=True) as (engine, _):
        described = [_described(engine, name) for name in engine.names()]
        aliases = engine.aliases()
    unreadable = any(isinstance(entry, CollectionDamaged) for entry in described)
    if json:
        print_json(described)
        raise typer.Exit(int(unreadable))
    for entry in described:
        if isinstance(entry, CollectionDamaged):
            typer.echo(f"{entry.name}: {entry.problem['detail']}")
            continue
        state = f"generation {entry.generation}, model {entry.model}"
        keys = f", keys {keys_text}" if (keys_text := described_keys(entry.keys)) else ""
        typer.echo(f"{entry.name}: {amount(entry.documents, 'document')}, {state}{keys}")
        if entry.pending:
            tell_waiting(entry.pending, entry.name)
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

    def __init__(self, most: int = 20):
        self._left = most

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
    condition: Any = options.filter_of(filter)
    with reading(home) as engine:
        counted = engine.facets(collection, fields, filter=condition, limit=limit)
    if json:
        print_json(counted)
        return
    for field, values in counted.facets.items():
        typer.echo(field)
        for value in values:
            typer.echo(f"{value.documents:>8}  {as_json(value.value)}")
        if not values and counted.documents:
            say(f"no value: none of these documents has the field {field}")
    matching = "" if condition is None else f" match{'es' if counted.documents == 1 else ''} the filter"
    say(f"{amount(counted.documents, 'document') if counted.documents else 'no documents'}{matching}")


def update(
    id: Annotated[str, typer.Argument(help="Id of the document.")],
    metadata: Annotated[str, typer.Argument(help="Changes as a JSON object; null removes a field.")],
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Change part of a document's metadata; its text and embedding stay."""
    changes: Any = options.json_of(metadata, "metadata", '{"year": 2018, "draft": null}')
    with writing(home) as engine:
        changed = engine.update_metadata(collection, id, changes)
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
    if bool(ids) == (filter is not None):
        raise InvalidRequest(
            f"{'ids and --filter' if ids else 'neither ids nor --filter'}; give one of the two"
        )
    condition: Any = options.filter_of(filter)  # checked by the deletion
    with writing(home) as engine:
        result = engine.delete_many(collection, ids=ids or None, filter=condition)
    if json:
        print_json(result)
        return
    were = "was" if result.missing == 1 else "were"
    missing = f", {result.missing} {were} not there" if result.missing else ""
    typer.echo(f"{collection}: {result.deleted} deleted{missing}")
    if result.note is not None:
        say(with_home(result.note, "refresh", "cluster start"))

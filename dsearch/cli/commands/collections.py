"""Commands that list, create and drop collections, and show, count, change and delete documents."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.commands.maintenance import described_keys
from dsearch.cli.engine import in_process, is_there, local_engine, reading, writing
from dsearch.cli.output import tell_prompts, tell_waiting
from dsearch.cli.session import as_json, command_line, opened_engine, print_json, say, with_home
from dsearch.errors import Conflict, CorruptData, DsearchError, InvalidRequest, amount
from dsearch.results import CollectionDamaged, CollectionInfo

if TYPE_CHECKING:
    from dsearch.cli.engine import Engine
    from dsearch.engine import SearchEngine


def collections(home: options.HomeFolder = None, json: options.AsJson = False) -> None:
    """List the collections. Exit code 1: one of them cannot be opened."""
    with opened_engine(home, readonly=True) as (engine, _):
        described = [_info_of(engine, name) for name in engine.names()]
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
        say(f"no collection yet; make one with: {command_line('index', 'SOURCE', '-c', 'NAME')}")
    raise typer.Exit(int(unreadable))


def _info_of(engine: SearchEngine, name: str) -> CollectionInfo | CollectionDamaged:
    """As the service describes it: one that is damaged keeps nobody from the others."""
    try:
        return engine.collection(name).describe()
    except DsearchError as error:
        return CollectionDamaged.of(name, error)


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


def create(
    name: Annotated[str, typer.Argument(help="The collection's name.")],
    language: options.Language = None,
    search_fields: options.SearchFields = None,
    passage_tokens: options.PassageTokens = None,
    overlap: options.Overlap = None,
    no_passages: options.NoPassages = False,
    kind: options.KeyKind = None,
    dimension: options.Dimension = None,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    json: options.AsJson = False,
) -> None:
    """Create an empty collection; `dsearch index` does it by itself."""
    from dsearch.encoder import prompts_of

    cut = {"tokens": passage_tokens, "overlap": overlap, "none": no_passages or None}
    passages = {option: value for option, value in cut.items() if value is not None}
    with writing(home, {"encoder": encoder}) as engine:
        if name in (aliases := engine.aliases()):
            raise Conflict(f"{name!r} is an alias of {aliases[name]!r}; choose another name")
        if is_there(engine, name):
            raise Conflict(f"collection {name!r} exists; drop it first, or choose another name")
        info = engine.create_collection(
            name,
            language=language,
            passages=passages or None,
            kind=kind,
            dimension=dimension,
            search_fields=options.field_names(search_fields),
        )
        local = in_process(engine)
        if local is not None and (created := local.engine.collection(name)).has_encoder:
            tell_prompts(prompts_of(created.encoder))
    if json:
        print_json(asdict(info))
        return
    typer.echo(f"{info.name}: created, language {info.language}")
    own = () if dimension is None else ("--embedding-column", "embedding")
    say(f"fill it with: {command_line('index', 'SOURCE', '-c', info.name, *own)}")


def drop(
    names: Annotated[list[str], typer.Argument(help="Names of collections.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Delete collections with everything in them: documents, models, feedback."""
    with writing(home) as engine:
        documents_of = _counted(engine, names)
        _consent(documents_of, yes)
        for name in documents_of:
            engine.delete_collection(name)
    if json:
        print_json({"dropped": documents_of})
        return
    for name, documents in documents_of.items():
        typer.echo(f"{name}: dropped, with {_described(documents)}")


def _counted(engine: Engine, names: Sequence[str]) -> dict[str, int | None]:
    """Documents of each collection; None for a damaged one, which is a reason to drop it."""
    documents_of: dict[str, int | None] = dict.fromkeys(names)
    for name in names:
        with suppress(CorruptData):
            documents_of[name] = engine.collection(name).documents
    return documents_of


def _described(documents: int | None) -> str:
    return "a damaged database" if documents is None else amount(documents, "document")


def _consent(documents_of: dict[str, int | None], yes: bool) -> None:
    """Ask on a terminal.

    Raises:
        InvalidRequest: nobody can be asked.
        Abort: the answer was no.
    """
    names = ", ".join(f"{name} ({_described(documents)})" for name, documents in documents_of.items())
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidRequest(f"this deletes {names} for good; add --yes")
    typer.confirm(f"Delete {names} for good?", abort=True, err=True)


def show(
    id: Annotated[str, typer.Argument(help="Id of the document.")],
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Show a document: title, metadata and text."""
    with local_engine(home, readonly=True) as engine:
        document = engine.get(collection, id)
    if json:
        print_json(asdict(document))
        return
    typer.echo(document.id if document.title in ("", document.id) else f"{document.id}  {document.title}")
    fields: dict[str, Any] = {
        name: value for name, value in document.metadata.items() if not name.startswith("_")
    }
    if document.value is not None:
        fields["value"] = document.value
    for name, value in fields.items():
        typer.echo(f"  {name}: {value if isinstance(value, str) else as_json(value)}")
    typer.echo(f"\n{document.text}" if document.text else "", nl=bool(document.text))

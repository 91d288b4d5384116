"""`dsearch create`, `dsearch drop` and `dsearch show`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.output import tell_prompts
from dsearch.cli.remote import server_of
from dsearch.cli.session import as_json, opened_engine, print_json, say, typed
from dsearch.errors import Conflict, CorruptData, HomeLocked, InvalidRequest, amount


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
    from dsearch.engine import KeyOptions, PassageOptions

    names = options.field_names(search_fields)
    try:
        with opened_engine(home, readonly=False, encoder=encoder) as (engine, _):
            created = engine.create(
                name,
                dimension=dimension,
                keys=None if kind is None else KeyOptions(kind),
                language="english" if language is None else language,
                search_fields=names or (),
                passages=PassageOptions(passage_tokens, overlap, none=no_passages),
            )
            info = created.describe()
            if created.has_encoder:
                tell_prompts(prompts_of(created.encoder))
    except HomeLocked as locked:
        cut = {"tokens": passage_tokens, "overlap": overlap, "none": no_passages or None}
        passages = {option: value for option, value in cut.items() if value is not None}
        with server_of(locked, {"encoder": encoder}) as client:
            if name in (aliases := client.aliases()):
                raise Conflict(f"{name!r} is an alias of {aliases[name]!r}; choose another name") from None
            if name in [info.name for info in client.collections()]:
                raise Conflict(f"collection {name!r} exists; drop it first, or choose another name") from None
            info = client.create_collection(
                name,
                language=language,
                passages=passages or None,
                kind=kind,
                dimension=dimension,
                search_fields=names,
            )
    if json:
        print_json(asdict(info))
        return
    typer.echo(f"{info.name}: created, language {info.language}")
    own = () if dimension is None else ("--embedding-column", "embedding")
    say(f"fill it with: {typed('index', 'SOURCE', '-c', info.name, *own)}")


def drop(
    names: Annotated[list[str], typer.Argument(help="Names of collections.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Delete collections with everything in them: documents, models, feedback."""
    try:
        with opened_engine(home, readonly=False) as (engine, _):
            documents_of = _counted(names, lambda name: engine.collection(name).store.count().documents)
            _consent(documents_of, yes)
            for name in documents_of:
                engine.drop(name)
    except HomeLocked as locked:
        with server_of(locked) as client:
            documents_of = _counted(names, lambda name: client.collection(name).documents)
            _consent(documents_of, yes)
            for name in documents_of:
                client.delete_collection(name)
    if json:
        print_json({"dropped": documents_of})
        return
    for name, documents in documents_of.items():
        typer.echo(f"{name}: dropped, with {_described(documents)}")


def _counted(names: Sequence[str], count: Callable[[str], int]) -> dict[str, int | None]:
    """Documents of each collection; None for a damaged one, which is a reason to drop it."""
    documents_of: dict[str, int | None] = dict.fromkeys(names)
    for name in names:
        with suppress(CorruptData):
            documents_of[name] = count(name)
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
    with opened_engine(home, readonly=True) as (engine, _):
        document = engine.collection(collection).store.get(id)
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

"""`dsearch create`, `dsearch drop` and `dsearch show`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.engine import in_process, is_there, local_engine, writing
from dsearch.cli.output import tell_prompts
from dsearch.cli.session import as_json, print_json, say, typed
from dsearch.errors import Conflict, CorruptData, InvalidRequest, amount

if TYPE_CHECKING:
    from dsearch.cli.engine import Engine


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
    say(f"fill it with: {typed('index', 'SOURCE', '-c', info.name, *own)}")


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

"""`dsearch facets`, `dsearch update` and `dsearch delete`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.by_server import server_of
from dsearch.cli.session import as_json, opened_engine, print_json, say


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
        store = engine.collection(collection).store
        documents = store.count(condition).documents
        found = {field: store.facets(field, condition, limit) for field in fields}
    if json:
        counts = {field: [asdict(value) for value in values] for field, values in found.items()}
        print_json({"documents": documents, "facets": counts})
        return
    for field, values in found.items():
        typer.echo(field)
        for value in values:
            typer.echo(f"{value.documents:>8}  {as_json(value.value)}")
    say(f"{documents} documents")


def update(
    id: Annotated[str, typer.Argument(help="Of the document.")],
    metadata: Annotated[str, typer.Argument(help="What changes, as a JSON object; null removes a field.")],
    collection: options.CollectionName = "default",
    home: options.HomeFolder = None,
    json: options.AsJson = False,
) -> None:
    """Change part of a document's metadata; its text and embedding stay."""
    from dsearch.errors import HomeLocked

    changes: Any = options.json_of(metadata, "metadata", '{"year": 2018, "draft": null}')
    try:
        with opened_engine(home, readonly=False) as (engine, _):
            target = engine.collection(collection)
            sequence = target.update_metadata(id, changes).sequence
            now = target.store.get(id).metadata
    except HomeLocked as locked:
        with server_of(locked) as client:
            changed = client.update_metadata(collection, id, changes)
        sequence, now = changed.sequence, changed.metadata
    if json:
        print_json({"sequence": sequence, "id": id, "metadata": now})
        return
    typer.echo(f"{collection}: {id} has {as_json(now)}")


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
    condition: Any = options.filter_of(filter)  # whoever deletes checks it
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

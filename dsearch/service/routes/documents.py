"""Documents of a collection: write, read, list, delete, and change in place.

Metadata can be changed in part, and documents deleted by a filter.
"""

from __future__ import annotations

import base64
import binascii
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field, TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool

from dsearch.errors import (
    CollectionNotFound,
    Conflict,
    DocumentNotFound,
    DsearchError,
    EncoderMismatch,
    EncoderUnavailable,
    InvalidCursor,
    InvalidDocument,
    InvalidRequest,
)
from dsearch.service.batching.ingest import Ingest, blocks
from dsearch.service.collections import Catalogue
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.middleware.strict_route import (
    JSON_TYPES,
    MAX_STREAM_BYTES,
    NDJSON_TYPES,
    StrictRoute,
    limited,
    read_json,
    require_type,
)
from dsearch.service.schemas.documents import (
    Deleted,
    DeleteRequest,
    DocumentPage,
    DocumentStored,
    ManyDeleted,
    Patched,
    PatchRequest,
    Written,
)
from dsearch.service.schemas.search import DocumentGiven, FilterText, Limit, tree_of
from dsearch.service.state import Service, TheService
from dsearch.service.wire.fields import Given, allowed, shown
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented, in_body, problem_of
from dsearch.store import Filter
from dsearch.types import Document

PAGE_CHARACTERS = 8 * 1024 * 1024
_READ_AT_ONCE = 50

router = APIRouter(
    prefix="/v1/collections/{collection}/documents", tags=["documents"], route_class=StrictRoute
)
_ARRAY = TypeAdapter(list[DocumentGiven])
_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"type": "array", "items": {"$ref": "#/components/schemas/DocumentGiven"}},
            "example": [
                {"id": "a", "text": "Queries attend to keys."},
                {"id": "b", "title": "Pooling", "text": "…"},
            ],
        },
        "application/x-ndjson": {
            "schema": {"type": "string", "description": "one document in JSON on each line"},
            "example": '{"id": "a", "text": "Queries attend to keys."}\n{"id": "b", "text": "…"}\n',
        },
    },
}


class ListParameters(Given):
    """Options of a list of documents."""

    limit: Limit = 100
    cursor: Annotated[str, Field(max_length=1024), allowed("the `next` of an answer")] | None = Field(
        None, description="`next` of the page before"
    )
    filter: FilterText | None = Field(
        None, description="what metadata must meet, as JSON", examples=['{"year": {"gte": 2017}}']
    )


@router.put(
    "",
    response_model=Written,
    openapi_extra={"requestBody": _BODY},
    responses=documented(
        CollectionNotFound, InvalidDocument, InvalidRequest, InvalidJson, BodyTooLarge, UnsupportedMediaType
    )
    | documented(Conflict, EncoderMismatch, EncoderUnavailable, Overloaded),
)
async def upsert_documents(collection: str, request: Request, service: TheService) -> Response:
    """Insert documents, or replace those of the same ids; durable and searchable on return.

    A JSON array (8 MiB) is stored whole or not at all. Of a stream of lines (NDJSON, 64 MiB) every good line
    is stored, block by block, and the answer lists the others by number.
    """
    if require_type(request, JSON_TYPES + NDJSON_TYPES) in NDJSON_TYPES:
        return await _upsert_stream(collection, request, service)
    read = await read_json(request)
    try:
        given = await run_in_threadpool(_ARRAY.validate_python, read)
    except ValidationError as error:
        raise RequestValidationError(in_body(error)) from None
    documents = [one.document() for one in given]
    characters = sum(len(one.text) + len(one.title) for one in documents)
    written = await service.writing.run(
        partial(_upsert, service.catalogue, collection, documents), characters=characters
    )
    return json_answer(written)


async def _upsert_stream(collection: str, request: Request, service: Service) -> Response:
    ingest = Ingest(service.catalogue, collection)
    try:
        async for block in blocks(limited(request, MAX_STREAM_BYTES)):
            await service.writing.run(
                partial(ingest.take, block), characters=sum(len(line) for _, line in block)
            )
        if ingest.sequence is None:  # no line at all
            await service.writing.run(partial(ingest.take, []))
        if ingest.nothing_stored:
            raise InvalidDocument(
                f"none of {ingest.refused} lines is a document that can be stored; see written"
            )
    except DsearchError as error:
        # Earlier blocks are acknowledged here: without this the sender could not know of them.
        return problem_of(error, written=ingest.written())
    return json_answer(ingest.written())


@router.get(
    "", response_model=DocumentPage, responses=documented(CollectionNotFound, InvalidCursor, InvalidRequest)
)
async def list_documents(
    collection: str, service: TheService, asked: Annotated[ListParameters, Query()]
) -> Response:
    """List documents by id. Pages are shorter than `limit` if texts are long; follow `next`."""
    after = None if asked.cursor is None else _after(asked.cursor)
    page = partial(_page, service.catalogue, collection, after, asked.limit, tree_of(asked.filter))
    return json_answer(await service.read(page))


@router.get(
    "/{id:path}",
    response_model=DocumentStored,
    responses=documented(CollectionNotFound, DocumentNotFound, InvalidRequest),
)
async def get_document(collection: str, id: str, service: TheService) -> Response:
    """Return one document."""

    def get() -> dict[str, Any]:
        with service.catalogue.using(collection) as opened:
            return _stored(opened.store.get(id))

    return json_answer(await service.read(get))


@router.delete(
    "/{id:path}",
    response_model=Deleted,
    responses=documented(CollectionNotFound, DocumentNotFound, InvalidRequest, Conflict, Overloaded),
)
async def delete_document(collection: str, id: str, service: TheService) -> Response:
    """Delete one document; gone from every later search on return."""

    def delete() -> dict[str, Any]:
        with service.catalogue.writing(collection) as opened:
            receipt = opened.delete([id])
        if not receipt.deleted:
            raise DocumentNotFound(
                f"no document {id[:80]!r} in collection {collection!r}; nothing was deleted"
            )
        return {"sequence": receipt.sequence, "deleted": receipt.deleted}

    return json_answer(await service.writing.run(delete))


def _upsert(catalogue: Catalogue, name: str, documents: list[Document]) -> dict[str, Any]:
    with catalogue.writing(name, encoder=True) as collection:
        receipt = collection.upsert(documents)
    return {
        "sequence": receipt.sequence,
        "inserted": receipt.inserted,
        "updated": receipt.updated,
        "unchanged": receipt.unchanged,
        "refused": 0,
        "problems": [],
    }


def _page(
    catalogue: Catalogue, name: str, after: str | None, limit: int, tree: Filter | None
) -> dict[str, Any]:
    page: list[Document] = []
    characters = 0
    with catalogue.using(name) as collection:
        while len(page) < limit and characters < PAGE_CHARACTERS:
            wanted = min(_READ_AT_ONCE, limit - len(page))
            found = collection.store.list(page[-1].id if page else after, wanted, tree)
            page += found
            characters += sum(len(document.text) for document in found)
            if len(found) < wanted:
                return {"documents": [_stored(document) for document in page], "next": None}
        more = page and collection.store.list(page[-1].id, 1, tree)
    return {
        "documents": [_stored(document) for document in page],
        "next": _cursor(page[-1].id) if more else None,
    }


def _stored(document: Document) -> dict[str, Any]:
    return {
        "id": document.id,
        "title": document.title,
        "text": document.text,
        "metadata": document.metadata,
        "value": document.value,
    }


def _cursor(id: str) -> str:
    return base64.urlsafe_b64encode(id.encode()).decode().rstrip("=")


def _after(cursor: str) -> str:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise InvalidCursor(
            f"cursor={shown(cursor)}; use the `next` of an answer, or none to begin"
        ) from None


_BODIES = documented(InvalidRequest, InvalidJson, BodyTooLarge, UnsupportedMediaType, Conflict, Overloaded)


@router.post("/delete", response_model=ManyDeleted, responses=documented(CollectionNotFound) | _BODIES)
async def delete_documents(collection: str, asked: DeleteRequest, service: TheService) -> Response:
    """Delete the documents of these ids, or those that match a filter; gone on return."""
    tree = asked.tree()

    def delete() -> dict[str, Any]:
        with service.catalogue.writing(collection) as opened:
            receipt = opened.delete_matching(tree) if asked.ids is None else opened.delete(asked.ids)
        return {"sequence": receipt.sequence, "deleted": receipt.deleted, "missing": receipt.missing}

    return json_answer(await service.writing.run(delete))


@router.patch(
    "/{id:path}",
    response_model=Patched,
    responses=documented(CollectionNotFound, DocumentNotFound, InvalidDocument) | _BODIES,
)
async def change_metadata(collection: str, id: str, asked: PatchRequest, service: TheService) -> Response:
    """Change part of a document's metadata (JSON Merge Patch, RFC 7396); its text and embedding stay."""

    def change() -> dict[str, Any]:
        with service.catalogue.writing(collection) as opened:
            receipt = opened.update_metadata(id, asked.metadata)
            return {
                "sequence": receipt.sequence,
                "id": id,
                "metadata": opened.store.get(id).metadata,
            }

    return json_answer(await service.writing.run(change))

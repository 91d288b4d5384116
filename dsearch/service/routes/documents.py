"""Documents of a collection: write, read, list, delete, and change in place.

Metadata can be changed in part, and documents deleted by a filter.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field, TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool

from dsearch.errors import (
    CollectionNotFound,
    Conflict,
    DimensionMismatch,
    DocumentNotFound,
    DsearchError,
    EncoderMismatch,
    EncoderUnavailable,
    InvalidCursor,
    InvalidDocument,
    InvalidRequest,
    amount,
)
from dsearch.operations import (
    DeleteDocument,
    DeleteDocuments,
    GetDocument,
    ListDocuments,
    UpdateMetadata,
    Upsert,
)
from dsearch.results import WriteResult
from dsearch.service.collections import Catalogue
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.feedback import asker
from dsearch.service.ingest import StreamCounts, blocks
from dsearch.service.schemas.answers import public_document, public_metadata
from dsearch.service.schemas.documents import DeleteRequest, PatchRequest
from dsearch.service.schemas.search import DocumentGiven, EpisodeParameter, FilterText, Limit, tree_of
from dsearch.service.state import Service, TheService
from dsearch.service.wire.declared_routes import answers
from dsearch.service.wire.error_bound import BoundedErrors
from dsearch.service.wire.json import TENSORS, json_answer
from dsearch.service.wire.problems import documented, in_body
from dsearch.service.wire.requests import (
    JSON_TYPES,
    MAX_STREAM_BYTES,
    NDJSON_TYPES,
    RequestModel,
    StrictRoute,
    allowed,
    limited,
    read_json,
    require_type,
)
from dsearch.service.wire.tensor_documents import documents_of_tensors, with_vectors
from dsearch.types import Document

router = APIRouter(
    prefix="/v1/collections/{collection}/documents", tags=["documents"], route_class=StrictRoute
)
_ARRAY = TypeAdapter(Annotated[list[DocumentGiven], BoundedErrors()])
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
        "application/x-safetensors": {
            "schema": {
                "type": "string",
                "format": "binary",
                "description": "tensor `embeddings` [n, dimension], and a JSON array of the n documents as "
                "`documents` of the metadata; for a collection that was created with a dimension",
            },
        },
        "application/x-ndjson": {
            "schema": {"type": "string", "description": "one document in JSON on each line"},
            "example": '{"id": "a", "text": "Queries attend to keys."}\n{"id": "b", "text": "…"}\n',
        },
    },
}


class ListParameters(RequestModel):
    """Options of a list of documents."""

    limit: Limit = 100
    cursor: Annotated[str, Field(max_length=1024), allowed("the `next` of an answer")] | None = Field(
        None, description="`next` of the page before"
    )
    filter: FilterText | None = Field(
        None, description="what metadata must meet, as JSON", examples=['{"year": {"gte": 2017}}']
    )


@answers(
    router,
    Upsert,
    openapi_extra={"requestBody": _BODY},
    responses=documented(
        CollectionNotFound, InvalidDocument, InvalidRequest, InvalidJson, BodyTooLarge, UnsupportedMediaType
    )
    | documented(InvalidDocument, InvalidRequest, DimensionMismatch)
    | documented(Conflict, EncoderMismatch, EncoderUnavailable, Overloaded),
)
async def upsert_documents(collection: str, request: Request, service: TheService) -> Response:
    """Insert documents, or replace those of the same ids; durable and searchable on return.

    A JSON array (8 MiB) is stored whole or not at all, and so are tensors with one (safetensors, 64 MiB). Of
    a stream of lines (NDJSON, 64 MiB) every good line is stored, block by block, and the answer lists the
    others by number.
    """
    kind = require_type(request, JSON_TYPES + NDJSON_TYPES + (TENSORS,))
    if kind in NDJSON_TYPES:
        return await _upsert_stream(collection, request, service)
    if kind == TENSORS:
        body = b"".join([part async for part in limited(request, MAX_STREAM_BYTES)])
        read, vectors = await run_in_threadpool(documents_of_tensors, body)
    else:
        read, vectors = await read_json(request), None
    try:
        items = await run_in_threadpool(_ARRAY.validate_python, read)
    except ValidationError as error:
        raise RequestValidationError(in_body(error)) from None
    documents = [item.document() for item in items]
    if vectors is not None:
        documents = with_vectors(documents, vectors)
    characters = sum(len(document.text) + len(document.title) for document in documents)
    written = await service.writing.run(
        partial(_upsert, service.catalogue, collection, documents), characters=characters
    )
    service.calibrate_soon(collection)
    return json_answer(written)


async def _upsert_stream(collection: str, request: Request, service: Service) -> Response:
    ingest = StreamCounts(service.catalogue, collection)
    try:
        async for block in blocks(limited(request, MAX_STREAM_BYTES)):
            await service.writing.run(
                partial(ingest.take, block), characters=sum(len(line) for _, line in block)
            )
        if ingest.sequence is None:  # no line at all
            await service.writing.run(partial(ingest.take, []))
        if ingest.nothing_stored:
            raise InvalidDocument(
                f"none of {amount(ingest.refused, 'line')} is a document that can be stored; see written"
            )
    except DsearchError as error:
        # Earlier blocks are acknowledged here: without this the sender could not know of them.
        return ingest.problem_of(error)
    service.calibrate_soon(collection)
    return json_answer(ingest.written())


@answers(router, ListDocuments, responses=documented(CollectionNotFound, InvalidCursor, InvalidRequest))
async def list_documents(
    collection: str, service: TheService, parameters: Annotated[ListParameters, Query()]
) -> Response:
    """List documents by id. Pages are shorter than `limit` if texts are long; follow `next`."""
    tree = tree_of(parameters.filter)
    asked = ListDocuments(collection, limit=parameters.limit, cursor=parameters.cursor, filter=tree)
    page = await service.answer(asked)
    return json_answer(replace(page, documents=[public_document(each) for each in page.documents]))


@answers(router, GetDocument, responses=documented(CollectionNotFound, DocumentNotFound, InvalidRequest))
async def get_document(
    collection: str, id: str, request: Request, service: TheService, episode: EpisodeParameter = None
) -> Response:
    """Return one document."""

    def get() -> tuple[str, Document]:
        with service.catalogue.using(collection) as opened:
            return opened.name, opened.store.get(id)

    name, document = await service.read(get)
    if episode is not None:
        service.episodes.add_reading(asker(request), episode, name, id)
    return json_answer(public_document(document))


@answers(
    router,
    DeleteDocument,
    responses=documented(CollectionNotFound, DocumentNotFound, InvalidRequest, Conflict, Overloaded),
)
async def delete_document(collection: str, id: str, service: TheService) -> Response:
    """Delete one document; gone from every later search on return.

    Shards of a cluster answer with their release until the next publishing: `note` says so.
    """
    deleted = await service.answer(DeleteDocument(collection, id))
    return json_answer({"sequence": deleted.sequence, "deleted": deleted.deleted, "note": deleted.note})


def _upsert(catalogue: Catalogue, name: str, documents: list[Document]) -> WriteResult:
    with catalogue.writing(name, encoder=True) as collection:
        receipt = collection.upsert(documents)
    return WriteResult(receipt.sequence, receipt.inserted, receipt.updated, receipt.unchanged, 0, [])


_BODIES = documented(InvalidRequest, InvalidJson, BodyTooLarge, UnsupportedMediaType, Conflict, Overloaded)


@answers(router, DeleteDocuments, responses=documented(CollectionNotFound) | _BODIES)
async def delete_documents(collection: str, body: DeleteRequest, service: TheService) -> Response:
    """Delete the documents of these ids, or those that match a filter; gone on return.

    Shards of a cluster answer with their release until the next publishing: `note` says so.
    """
    asked = DeleteDocuments(collection, ids=body.ids, filter=body.tree())
    return json_answer(await service.answer(asked))


@answers(
    router,
    UpdateMetadata,
    responses=documented(CollectionNotFound, DocumentNotFound, InvalidDocument) | _BODIES,
)
async def change_metadata(collection: str, id: str, body: PatchRequest, service: TheService) -> Response:
    """Change part of a document's metadata (JSON Merge Patch, RFC 7396); its text and embedding stay."""
    result = await service.answer(UpdateMetadata(collection, id, body.metadata))
    return json_answer(replace(result, metadata=public_metadata(result.metadata)))

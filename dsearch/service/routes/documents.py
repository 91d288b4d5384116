"""Documents of a collection: write, read, list, count, delete, change in place; files that become some."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from dsearch.errors import (
    Conflict,
    DimensionMismatch,
    DocumentNotFound,
    DsearchError,
    EncoderMismatch,
    EncoderUnavailable,
    InsufficientStorage,
    InvalidCursor,
    InvalidDocument,
    amount,
)
from dsearch.operations import (
    AddFiles,
    CountFacets,
    DeleteDocument,
    DeleteDocuments,
    GetDocument,
    ListDocuments,
    UpdateMetadata,
    Upsert,
)
from dsearch.results import DocumentPage, MetadataResult, Task, WriteResult
from dsearch.service.errors import InvalidJson
from dsearch.service.ingest import StreamCounts, blocks
from dsearch.service.routes.served import Asked, by_the_engine, serves
from dsearch.service.schemas.answers import public_document, public_metadata
from dsearch.service.schemas.documents import ARRAY, documents_of_tensors, with_vectors
from dsearch.service.state import Service
from dsearch.service.tasks.store import StoredTask
from dsearch.service.wire.form import MULTIPART, boundary_of, files_of_form
from dsearch.service.wire.json import TENSORS, json_answer
from dsearch.service.wire.problems import in_body
from dsearch.service.wire.requests import (
    JSON_TYPES,
    MAX_STREAM_BYTES,
    NDJSON_TYPES,
    StrictRoute,
    limited,
    read_json,
    require_type,
)
from dsearch.types import Document

router = APIRouter(prefix="/v1/collections/{collection}", tags=["documents"], route_class=StrictRoute)
_DOCUMENTS = {
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


@serves(
    router,
    Upsert,
    *(InvalidDocument, InvalidJson, DimensionMismatch, Conflict, EncoderMismatch, EncoderUnavailable),
    reads_body=True,
    openapi_extra={"requestBody": _DOCUMENTS},
)
async def upsert_documents(asked: Asked, call: Upsert) -> Any:
    """A JSON array (8 MiB) is stored whole or not at all, and so are tensors with one (safetensors, 64 MiB).
    Of a stream of lines (NDJSON, 64 MiB) every good line is stored, block by block, and the answer lists the
    others by number.
    """
    service, request = asked.service, asked.request
    kind = require_type(request, JSON_TYPES + NDJSON_TYPES + (TENSORS,))
    if kind in NDJSON_TYPES:
        return await _upsert_stream(call.collection, request, service)
    if kind == TENSORS:
        body = b"".join([part async for part in limited(request, MAX_STREAM_BYTES)])
        read, vectors = await run_in_threadpool(documents_of_tensors, body)
    else:
        read, vectors = await read_json(request), None
    try:
        items = await run_in_threadpool(ARRAY.validate_python, read)
    except ValidationError as error:
        raise RequestValidationError(in_body(error)) from None
    documents = [item.document() for item in items]
    if vectors is not None:
        documents = with_vectors(documents, vectors)

    def upsert() -> WriteResult:
        with service.catalogue.writing(call.collection, encoder=True) as collection:
            receipt = collection.upsert(documents)
        return WriteResult(receipt.sequence, receipt.inserted, receipt.updated, receipt.unchanged, 0, [])

    characters = sum(len(document.text) + len(document.title) for document in documents)
    written = await service.writing.run(upsert, characters=characters)
    service.calibrate_soon(call.collection)
    return written


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


@serves(router, ListDocuments, InvalidCursor, InvalidJson)
async def list_documents(asked: Asked, call: ListDocuments) -> DocumentPage:
    page = await asked.service.answer(call)
    return replace(page, documents=[public_document(each) for each in page.documents])


@serves(router, GetDocument, DocumentNotFound)
async def get_document(asked: Asked, call: GetDocument) -> Document:
    service = asked.service

    def get() -> tuple[str, Document]:
        with service.catalogue.using(call.collection) as opened:
            return opened.name, opened.store.get(call.id)

    name, document = await service.read(get)
    if call.episode is not None:
        service.episodes.add_reading(asked.key, call.episode, name, call.id)
    return public_document(document)


@serves(router, DeleteDocument, DocumentNotFound, Conflict)
async def delete_document(asked: Asked, call: DeleteDocument) -> dict[str, Any]:
    deleted = await asked.service.answer(call)
    return {"sequence": deleted.sequence, "deleted": deleted.deleted, "note": deleted.note}


serves(router, DeleteDocuments, Conflict)(by_the_engine)


@serves(router, UpdateMetadata, DocumentNotFound, InvalidDocument, Conflict)
async def change_metadata(asked: Asked, call: UpdateMetadata) -> MetadataResult:
    result = await asked.service.answer(call)
    return replace(result, metadata=public_metadata(result.metadata))


serves(router, CountFacets)(by_the_engine)
serves(router, CountFacets, InvalidJson, in_url=True)(by_the_engine)

_FORM = {
    "required": True,
    "content": {
        MULTIPART: {
            "example": {"file": ["notes.md", "keys.pdf"]},
            "schema": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "file": {
                        "type": "array",
                        "items": {"type": "string", "format": "binary"},
                        "description": "the files, each with its name; the field may have any name",
                    },
                },
            },
        }
    },
}


@serves(
    router,
    AddFiles,
    *(Conflict, InsufficientStorage),
    reads_body=True,
    openapi_extra={"requestBody": _FORM},
    responses={202: {"model": Task, "description": "They are on disk; `Location` leads to the task."}},
)
async def add_files(asked: Asked, call: AddFiles) -> Response:
    """At most 1000 files and 256 MiB in one request, of which each has at most 64 MiB, unpacked too. Once
    answered they survive a restart. A document's id is the name of its file as it was sent, with the folders
    in it; records of a table or of JSON lines have their own ids. A file that cannot be read hinders no
    other. What a cancelled task has stored stays.
    """
    service, request = asked.service, asked.request
    require_type(request, (MULTIPART,))
    boundary = boundary_of(request.headers["content-type"])

    def require_writable() -> None:
        service.tasks.require_room(call.collection)
        with service.catalogue.writing(call.collection) as opened:
            opened.store.require_writable()

    await service.read(require_writable)
    forms = service.tasks.forms
    upload = await forms.receive(request)

    def add() -> StoredTask:
        try:
            files = [asdict(file) for file in files_of_form(forms.place(upload), boundary)]
            return service.tasks.add("files", call.collection, {**upload, "files": files})
        except BaseException:
            forms.delete(upload)
            raise

    task = await service.finish(add)
    return json_answer(task.to_dict(), 202, {"Location": f"/v1/tasks/{task.id}"})

"""`/v1/vector_stores/{id}/files`, as clients of OpenAI's API call them: files of a collection.

A file that was uploaded becomes a document, or several: the first has the file's id. Any other document is a
file, too, whose id is the document's.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from dsearch.engine import calls
from dsearch.errors import (
    CollectionNotFound,
    Conflict,
    DocumentNotFound,
    EncoderUnavailable,
    InvalidRequest,
    NotFound,
)
from dsearch.results import CollectionInfo
from dsearch.service.collections import Catalogue
from dsearch.service.compat.files import FileId, page_of
from dsearch.service.compat.store_parts import (
    Chunking,
    attach,
    chunks_of,
    described,
    file_of,
    require_chunks,
    require_names,
)
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.state import TheService
from dsearch.service.uploads.attaching import Attachment, detach, ids_of
from dsearch.service.uploads.reading import FIELD
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import RequestModel, StrictRoute, allowed
from dsearch.types import Document

MAX_ATTRIBUTES = 16

router = APIRouter(prefix="/v1/vector_stores", tags=["compatible"], route_class=StrictRoute)

AttributeValue = (
    Annotated[str, Field(max_length=512)] | bool | Annotated[int, Field(ge=-(2**53), le=2**53)] | float
)
Attributes = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], AttributeValue],
    Field(max_length=MAX_ATTRIBUTES),
    allowed(f"at most {MAX_ATTRIBUTES} names of strings, numbers or booleans"),
]
FileStatus = Annotated[
    Literal["in_progress", "completed", "failed", "cancelled"],
    allowed("in_progress, completed, failed or cancelled"),
]
WRITES = documented(CollectionNotFound, NotFound, InvalidRequest, InvalidJson, BodyTooLarge) | documented(
    UnsupportedMediaType, Conflict, EncoderUnavailable, Overloaded
)


class FileAttach(RequestModel):
    """An uploaded file to store in a collection."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [{"file_id": "file-019ab3c4d5e6f00112233445", "attributes": {"year": 2017}}]
        },
    )

    file_id: FileId = Field(description="of POST /v1/files")
    attributes: Attributes | None = Field(None, description="metadata of the documents, for filters")
    chunking_strategy: Chunking | None = Field(
        None, description="passages are those of the collection: auto, or exactly these"
    )


class FileChange(RequestModel):
    """Attributes of a file to set."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"attributes": {"year": 2018}}]})

    attributes: Attributes = Field(description="set in the metadata of its documents; others stay")


class FileProblem(BaseModel):
    """Why a file could not be stored."""

    code: Literal["server_error", "unsupported_file", "invalid_file"] = Field(
        description="kind of the problem"
    )
    message: str = Field(description="what is wrong, and what to do")


_STATIC = {"type": "static", "static": {"max_chunk_size_tokens": 256, "chunk_overlap_tokens": 32}}
_STORED = {
    "id": "file-019ab3c4d5e6f00112233445",
    "object": "vector_store.file",
    "created_at": 1_764_000_000,
    "vector_store_id": "papers",
    "status": "completed",
    "usage_bytes": 24_000,
    "last_error": None,
    "attributes": {"name": "keys.pdf", "type": "pdf", "year": 2017},
    "chunking_strategy": _STATIC,
}


class StoredFile(BaseModel):
    """A file of a vector store."""

    model_config = ConfigDict(json_schema_extra={"examples": [_STORED]})

    id: str = Field(description="of the upload, or of the document")
    object: Literal["vector_store.file"]
    created_at: int = Field(description="when it was attached, in seconds since 1970; of other documents 0")
    vector_store_id: str = Field(description="name of the collection")
    status: FileStatus
    usage_bytes: int = Field(description="bytes of its texts")
    last_error: FileProblem | None = Field(
        None,
        description="of a failed file",
        examples=[{"code": "invalid_file", "message": "a.pdf: not a PDF"}],
    )
    attributes: dict[str, Any] = Field(description="its metadata that are strings, numbers or booleans")
    chunking_strategy: dict[str, Any] = Field(description="passages of the collection")


class StoredFileList(BaseModel):
    """Files of a vector store."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "list",
                    "data": [_STORED],
                    "first_id": _STORED["id"],
                    "last_id": _STORED["id"],
                    "has_more": False,
                }
            ]
        }
    )

    object: Literal["list"]
    data: list[StoredFile]
    first_id: str | None
    last_id: str | None
    has_more: bool = Field(description="True if files follow: ask with `after`")


class FileContent(BaseModel):
    """Texts of a file."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "vector_store.file_content.page",
                    "data": [{"type": "text", "text": "Keys are compared with queries."}],
                    "has_more": False,
                    "next_page": None,
                }
            ]
        }
    )

    object: Literal["vector_store.file_content.page"]
    data: list[dict[str, str]] = Field(description="text of each of its documents")
    has_more: bool
    next_page: str | None = Field(description="always null", examples=[None])


class StoredFileDeleted(BaseModel):
    """A file that was taken out of a vector store."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"id": _STORED["id"], "object": "vector_store.file.deleted", "deleted": True}]
        }
    )

    id: str
    object: Literal["vector_store.file.deleted"]
    deleted: bool = Field(description="always true")


class StoredFilesParameters(RequestModel):
    """Options of a list of files."""

    after: FileId | None = Field(
        None, description="id of the last file of the page before", examples=["file-019ab3c4d5e6f00112233445"]
    )
    limit: Annotated[int, Field(ge=1, le=100), allowed("an integer from 1 to 100")] = 20
    order: Annotated[Literal["asc"], allowed("asc: files have the order of their ids")] = Field(
        "asc", description="order of the ids, which is that of uploads; asc is the only one"
    )
    filter: FileStatus | None = Field(None, description="files of this status alone")


@router.post("/{collection}/files", response_model=StoredFile, responses=WRITES)
async def attach_file(collection: str, body: FileAttach, service: TheService) -> Response:
    """Store an uploaded file as documents (OpenAI's API); in the background, if it takes more than 20 s."""
    info = await described(service, collection)
    require_chunks(body.chunking_strategy, info)
    batch = await attach(service, info, [(body.file_id, body.attributes or {})])
    read = partial(_stored_file, service.catalogue, info, body.file_id)
    entry = batch.files[0]
    return json_answer(
        await service.read(read) if entry.status == "completed" else unfinished_file(entry, info)
    )


@router.get(
    "/{collection}/files",
    response_model=StoredFileList,
    responses=documented(CollectionNotFound, InvalidRequest),
)
async def list_store_files(
    collection: str, service: TheService, parameters: Annotated[StoredFilesParameters, Query()]
) -> Response:
    """List the files of a vector store by id, those that wait or failed among them (OpenAI's API)."""
    info = await described(service, collection)
    after, limit, wanted = parameters.after or "", parameters.limit, parameters.filter
    data = [
        unfinished_file(entry, info)
        for file, entry in service.attachments.unfinished(info.name).items()
        if file > after and wanted in (None, entry.status)
    ]
    if wanted in (None, "completed"):
        stored = await service.read(partial(_stored_files, service.catalogue, info, after, limit + 1))
        unfinished = {entry["id"] for entry in data}
        data += [entry for entry in stored if entry["id"] not in unfinished]
    return json_answer(page_of(sorted(data, key=lambda entry: entry["id"]), limit))


@router.get(
    "/{collection}/files/{file:path}/content",
    response_model=FileContent,
    responses=documented(CollectionNotFound, DocumentNotFound, InvalidRequest),
)
async def get_store_file_content(collection: str, file: str, service: TheService) -> Response:
    """Return the texts of a file, as they were read (OpenAI's API)."""

    def texts() -> list[dict[str, str]]:
        with service.catalogue.whole(collection) as opened:
            ids = ids_of(opened, file)
            if not ids:
                opened.store.get(file)  # raises
            return [{"type": "text", "text": opened.store.get(id).text} for id in ids]

    content = {"object": "vector_store.file_content.page", "data": await service.read(texts)}
    return json_answer({**content, "has_more": False, "next_page": None})


@router.get(
    "/{collection}/files/{file:path}",
    response_model=StoredFile,
    responses=documented(CollectionNotFound, DocumentNotFound, InvalidRequest),
)
async def get_store_file(collection: str, file: str, service: TheService) -> Response:
    """Describe a file of a vector store: whether it is stored, or why not (OpenAI's API)."""
    info = await described(service, collection)
    if (entry := service.attachments.unfinished(info.name).get(file)) is not None:
        return json_answer(unfinished_file(entry, info))
    return json_answer(await service.read(partial(_stored_file, service.catalogue, info, file)))


@router.post("/{collection}/files/{file:path}", response_model=StoredFile, responses=WRITES)
async def change_store_file(collection: str, file: str, body: FileChange, service: TheService) -> Response:
    """Set attributes of a file of a vector store (OpenAI's API)."""
    info = await described(service, collection)

    def change() -> None:
        with service.catalogue.writing(info.name) as opened:
            for id in ids_of(opened, file) or [file]:
                opened.update_metadata(id, dict(body.attributes))

    require_names(body.attributes)
    await service.writing.run(change)
    return json_answer(await service.read(partial(_stored_file, service.catalogue, info, file)))


@router.delete(
    "/{collection}/files/{file:path}",
    response_model=StoredFileDeleted,
    responses=documented(CollectionNotFound, DocumentNotFound, InvalidRequest, Conflict, Overloaded),
)
async def delete_store_file(collection: str, file: str, service: TheService) -> Response:
    """Delete the documents of a file; the upload stays (OpenAI's API)."""
    info = await described(service, collection)
    forgotten = service.attachments.forget(info.name, file)
    deleted = await service.writing.run(partial(detach, service.catalogue, info.name, file))
    if not deleted and not forgotten:
        raise DocumentNotFound(f"no file {file[:80]!r} in collection {info.name!r}; nothing was deleted")
    return json_answer({"id": file, "object": "vector_store.file.deleted", "deleted": True})


def unfinished_file(entry: Attachment, info: CollectionInfo) -> dict[str, Any]:
    """A file that waits or failed, in OpenAI's shape."""
    return {
        "id": entry.file,
        "object": "vector_store.file",
        "created_at": entry.created_at,
        "vector_store_id": info.name,
        "status": entry.status,
        "usage_bytes": 0,
        "last_error": None if entry.code is None else {"code": entry.code, "message": entry.problem},
        "attributes": dict(entry.attributes),
        "chunking_strategy": chunks_of(info),
    }


def _stored_file(catalogue: Catalogue, info: CollectionInfo, id: str) -> dict[str, Any]:
    with catalogue.using(info.name) as collection:
        return _completed(collection.store.get(id), info)


def _stored_files(catalogue: Catalogue, info: CollectionInfo, after: str, limit: int) -> list[dict[str, Any]]:
    """Documents by id, without further parts of files."""
    cursor = calls.cursor_after(after) if after else None
    filter = {"not": {f"{FIELD}.part": {"gt": 1}}}
    page = catalogue.call(calls.list_documents, info.name, limit=limit, cursor=cursor, filter=filter)()
    return [_completed(document, info) for document in page.documents]


def _completed(document: Document, info: CollectionInfo) -> dict[str, Any]:
    own = document.metadata.get(FIELD)
    facts = own if isinstance(own, dict) else {}
    size, created_at = facts.get("bytes"), facts.get("created_at")
    return {
        "id": file_of(document),
        "object": "vector_store.file",
        "created_at": created_at if isinstance(created_at, int) else 0,
        "vector_store_id": info.name,
        "status": "completed",
        "usage_bytes": size if isinstance(size, int) else len(document.text.encode()),
        "last_error": None,
        "attributes": {
            name: value for name, value in document.metadata.items() if isinstance(value, str | int | float)
        },
        "chunking_strategy": chunks_of(info),
    }

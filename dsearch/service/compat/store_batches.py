"""`/v1/vector_stores/{id}/file_batches`, as clients of OpenAI's API call them: files attached together."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dsearch.errors import CollectionNotFound, InvalidRequest, NotFound
from dsearch.results import CollectionInfo
from dsearch.service.compat.files import FileId, page_of
from dsearch.service.compat.store_files import (
    WRITES,
    Attributes,
    StoredFileList,
    StoredFilesParameters,
    unfinished_file,
)
from dsearch.service.compat.store_parts import MAX_BATCH, Chunking, attach, described, require_chunks
from dsearch.service.compat.vector_stores import FileCounts
from dsearch.service.state import TheService
from dsearch.service.uploads.attaching import AttachedBatch
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import RequestModel, StrictRoute, allowed

router = APIRouter(prefix="/v1/vector_stores", tags=["compatible"], route_class=StrictRoute)


class BatchFile(RequestModel):
    """A file of a batch."""

    model_config = ConfigDict(strict=True)

    file_id: FileId = Field(description="of POST /v1/files")
    attributes: Attributes | None = Field(None, description="metadata of the documents, for filters")
    chunking_strategy: Chunking | None = Field(
        None, description="passages are those of the collection: auto, or exactly these"
    )


class BatchCreate(RequestModel):
    """Uploaded files to store in a collection: `file_ids`, or `files` with attributes of their own."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"file_ids": ["file-019ab3c4d5e6f00112233445"]}]},
    )

    file_ids: (
        Annotated[list[FileId], Field(min_length=1, max_length=MAX_BATCH), allowed("ids of files")] | None
    ) = Field(None, description="of POST /v1/files; give these or files")
    files: Annotated[list[BatchFile], Field(min_length=1, max_length=MAX_BATCH)] | None = Field(
        None,
        description="with attributes of each; give these or file_ids",
        examples=[[{"file_id": "file-019ab3c4d5e6f00112233445", "attributes": {"year": 2017}}]],
    )
    attributes: Attributes | None = Field(None, description="metadata of all documents, with file_ids alone")
    chunking_strategy: Chunking | None = Field(
        None, description="passages are those of the collection: auto, or exactly these"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.file_ids is None) == (self.files is None):
            selection = "neither file_ids nor files" if self.files is None else "file_ids and files"
            raise ValueError(f"{selection}; give one of the two")
        if self.files is not None and self.attributes is not None:
            raise ValueError("attributes beside files; give them with each file")
        return self


class BatchObject(BaseModel):
    """Files that were attached together."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "vsfb_0d9f1f6ab8f14bb0a1b1a7a3",
                    "object": "vector_store.files_batch",
                    "created_at": 1_764_000_000,
                    "vector_store_id": "papers",
                    "status": "completed",
                    "file_counts": {
                        "in_progress": 0,
                        "completed": 2,
                        "failed": 0,
                        "cancelled": 0,
                        "total": 2,
                    },
                }
            ]
        }
    )

    id: str = Field(description="known until the service stops")
    object: Literal["vector_store.files_batch"]
    created_at: int = Field(description="seconds since 1970")
    vector_store_id: str = Field(description="name of the collection")
    status: Literal["in_progress", "completed", "cancelled", "failed"] = Field(
        description="failed: none of its files could be stored"
    )
    file_counts: FileCounts = Field(description="its files by their status")


@router.post("/{collection}/file_batches", response_model=BatchObject, responses=WRITES)
async def create_batch(collection: str, body: BatchCreate, service: TheService) -> Response:
    """Store uploaded files (OpenAI's API); in the background, if they take more than 20 s."""
    info = await described(service, collection)
    files = body.files or [
        BatchFile(file_id=id, attributes=body.attributes, chunking_strategy=None)
        for id in body.file_ids or ()
    ]
    for chunking in (body.chunking_strategy, *(entry.chunking_strategy for entry in files)):
        require_chunks(chunking, info)
    batch = await attach(service, info, [(entry.file_id, entry.attributes or {}) for entry in files])
    return json_answer(_object(batch, info))


@router.get(
    "/{collection}/file_batches/{batch}",
    response_model=BatchObject,
    responses=documented(CollectionNotFound, NotFound, InvalidRequest),
)
async def get_batch(collection: str, batch: str, service: TheService) -> Response:
    """Describe files that were attached together (OpenAI's API)."""
    info = await described(service, collection)
    return json_answer(_object(service.attachments.batch(info.name, batch), info))


@router.post(
    "/{collection}/file_batches/{batch}/cancel",
    response_model=BatchObject,
    responses=documented(CollectionNotFound, NotFound, InvalidRequest),
)
async def cancel_batch(collection: str, batch: str, service: TheService) -> Response:
    """Leave out the files of a batch that have not been begun (OpenAI's API)."""
    info = await described(service, collection)
    own = service.attachments.batch(info.name, batch)
    service.attachments.cancel(own)
    return json_answer(_object(own, info))


@router.get(
    "/{collection}/file_batches/{batch}/files",
    response_model=StoredFileList,
    responses=documented(CollectionNotFound, NotFound, InvalidRequest),
)
async def list_batch_files(
    collection: str, batch: str, service: TheService, parameters: Annotated[StoredFilesParameters, Query()]
) -> Response:
    """List the files of a batch by id (OpenAI's API)."""
    info = await described(service, collection)
    wanted = parameters.filter
    files = sorted(service.attachments.batch(info.name, batch).files, key=lambda entry: entry.file)
    data = [
        unfinished_file(entry, info)
        for entry in files
        if entry.file > (parameters.after or "") and wanted in (None, entry.status)
    ]
    return json_answer(page_of(data, parameters.limit))


def _object(batch: AttachedBatch, info: CollectionInfo) -> dict[str, Any]:
    states = [entry.status for entry in batch.files]
    names = ("in_progress", "completed", "failed", "cancelled")
    return {
        "id": batch.id,
        "object": "vector_store.files_batch",
        "created_at": batch.created_at,
        "vector_store_id": info.name,
        "status": batch.status,
        "file_counts": {name: states.count(name) for name in names} | {"total": len(states)},
    }

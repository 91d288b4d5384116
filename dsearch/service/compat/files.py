"""`/v1/files`, as clients of OpenAI's API call it: files that vector stores are made of.

A file is kept as it came. Attached to a vector store (store_files.py) it becomes documents.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, BinaryIO, Literal, cast

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.types import Message

from dsearch.errors import Conflict, CorruptData, InsufficientStorage, InvalidRequest, NotFound
from dsearch.service.errors import BodyTooLarge, Overloaded, UnsupportedMediaType
from dsearch.service.state import TheService
from dsearch.service.uploads.attaching import detach_everywhere
from dsearch.service.uploads.files import MAX_FILES, UploadedFile, Uploads
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import (
    MAX_STREAM_BYTES,
    RequestModel,
    StrictRoute,
    allowed,
    repr_of,
    require_type,
)

MULTIPART = "multipart/form-data"
PURPOSES = ("assistants", "user_data")
_FRAME_BYTES = 64 * 1024  # of a form around the file
_BODY = {
    "required": True,
    "content": {
        MULTIPART: {
            "example": {"file": "notes.md", "purpose": "assistants"},
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "additionalProperties": False,
                "properties": {
                    "file": {"type": "string", "format": "binary", "description": "the file, with its name"},
                    "purpose": {"type": "string", "enum": list(PURPOSES)},
                },
            },
        }
    },
}
_FILE = {
    "id": "file-019ab3c4d5e6f00112233445",
    "object": "file",
    "bytes": 120_000,
    "created_at": 1_764_000_000,
    "filename": "keys.pdf",
    "purpose": "assistants",
    "status": "processed",
}

router = APIRouter(prefix="/v1/files", tags=["compatible"], route_class=StrictRoute)

FileId = Annotated[str, Field(min_length=1, max_length=512), allowed("the id of a file")]


class FileObject(BaseModel):
    """A file that was uploaded."""

    model_config = ConfigDict(json_schema_extra={"examples": [_FILE]})

    id: str = Field(description="made by the service; ids have the order of the uploads")
    object: Literal["file"]
    bytes: int = Field(description="size of the file")
    created_at: int = Field(description="seconds since 1970")
    filename: str = Field(description="name that the client gave; its suffix selects the reader")
    purpose: str = Field(description="as the client gave it")
    status: Literal["processed"]


class FileList(BaseModel):
    """Files that were uploaded."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "list",
                    "data": [_FILE],
                    "first_id": _FILE["id"],
                    "last_id": _FILE["id"],
                    "has_more": False,
                }
            ]
        }
    )

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool = Field(description="True if files follow: ask with `after`")


class FileDeleted(BaseModel):
    """A file that was deleted."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"id": _FILE["id"], "object": "file", "deleted": True}]}
    )

    id: str
    object: Literal["file"]
    deleted: bool = Field(description="always true")


class FileListParameters(RequestModel):
    """Options of a list of files."""

    after: FileId | None = Field(
        None, description="id of the last file of the page before", examples=[_FILE["id"]]
    )
    limit: Annotated[int, Field(ge=1, le=MAX_FILES), allowed(f"an integer from 1 to {MAX_FILES}")] = MAX_FILES
    order: Annotated[Literal["asc"], allowed("asc: files have the order of their uploads")] = Field(
        "asc", description="order of the uploads; asc is the only one"
    )
    purpose: Annotated[str, Field(max_length=64), allowed("a string")] | None = Field(
        None, description="files of this purpose alone", examples=["assistants"]
    )


@router.post(
    "",
    response_model=FileObject,
    openapi_extra={"requestBody": _BODY},
    responses=documented(InvalidRequest, BodyTooLarge, UnsupportedMediaType, Conflict, Overloaded)
    | documented(InsufficientStorage),
)
async def upload_file(request: Request, service: TheService) -> Response:
    """Keep a file of at most 64 MiB, which vector stores can be made of (OpenAI's API)."""
    require_type(request, (MULTIPART,))
    async with _form_of(request) as form:
        names = sorted({str(name) for name in form})
        purpose, file = form.get("purpose"), form.get("file")
        if not isinstance(file, UploadFile):
            raise InvalidRequest("file is missing; send the field `file` with a name, and `purpose`")
        if unknown := [name for name in names if name not in ("file", "purpose")]:
            raise InvalidRequest(f"unknown field {repr_of(unknown[0])}; use file, purpose")
        if purpose not in PURPOSES:
            raise InvalidRequest(f"purpose={repr_of(purpose)}; use {' or '.join(PURPOSES)}")
        keep = partial(
            service.uploads.add, cast(BinaryIO, file.file), file.filename or "", cast(str, purpose)
        )
        return json_answer(_object(await service.feedback.run(keep)))


@router.get("", response_model=FileList, responses=documented(InvalidRequest))
async def list_files(service: TheService, parameters: Annotated[FileListParameters, Query()]) -> Response:
    """List the uploaded files, in the order of the uploads (OpenAI's API)."""
    read = partial(service.uploads.list, parameters.after or "", parameters.limit + 1, parameters.purpose)
    return json_answer(page_of([_object(file) for file in await service.read(read)], parameters.limit))


@router.get("/{file}", response_model=FileObject, responses=documented(NotFound, CorruptData))
async def get_file(file: str, service: TheService) -> Response:
    """Describe an uploaded file (OpenAI's API)."""
    return json_answer(_object(await service.read(partial(service.uploads.get, file))))


@router.delete("/{file}", response_model=FileDeleted, responses=documented(NotFound, Conflict, Overloaded))
async def delete_file(file: str, service: TheService) -> Response:
    """Delete an uploaded file, and its documents in every vector store (OpenAI's API)."""

    def delete(uploads: Uploads = service.uploads) -> None:
        uploads.get(file)
        detach_everywhere(service.catalogue, file)
        uploads.delete(file)

    await service.writing.run(delete)
    return json_answer({"id": file, "object": "file", "deleted": True})


def page_of(data: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A page in OpenAI's shape, of one entry more than fits if there are more."""
    page = data[:limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return {"object": "list", "data": page, **ends, "has_more": len(data) > limit}


def _object(upload: UploadedFile) -> dict[str, Any]:
    return {
        "id": upload.id,
        "object": "file",
        "bytes": upload.bytes,
        "created_at": upload.created_at,
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": "processed",
    }


class _form_of:  # a context manager, called like a function
    """The form of a request, refused when it is too large or no form.

    Raises:
        BodyTooLarge, InvalidRequest.
    """

    def __init__(self, request: Request):
        self._received = 0
        self._request = Request(request.scope, partial(self._receive, request))
        self._form = self._request.form(max_files=1, max_fields=8, max_part_size=1024)

    async def _receive(self, request: Request) -> Message:
        message = await request.receive()
        self._received += len(message.get("body", b""))
        if self._received > MAX_STREAM_BYTES + _FRAME_BYTES:
            raise BodyTooLarge(f"a file of more than {MAX_STREAM_BYTES} bytes; split it")
        return message

    async def __aenter__(self) -> Any:
        try:
            return await self._form.__aenter__()
        except HTTPException as error:
            raise InvalidRequest(
                f"the body is no form that can be read: {error.detail}; send `file` and `purpose` as "
                f"{MULTIPART}"
            ) from None

    async def __aexit__(self, *error: Any) -> None:
        await self._form.__aexit__(*error)

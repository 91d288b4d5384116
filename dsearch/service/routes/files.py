"""Files of a collection: sent as a form, read in a task, stored as documents."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from fastapi import APIRouter, Request, Response

from dsearch.errors import CollectionNotFound, Conflict, InsufficientStorage, InvalidRequest
from dsearch.operations import AddFiles
from dsearch.results import Task
from dsearch.service.errors import BodyTooLarge, Overloaded, UnsupportedMediaType
from dsearch.service.state import TheService
from dsearch.service.tasks.store import StoredTask
from dsearch.service.wire.declared_routes import answers
from dsearch.service.wire.form import MULTIPART, boundary_of, files_of_form
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import StrictRoute, require_type

router = APIRouter(prefix="/v1/collections", tags=["documents"], route_class=StrictRoute)
_BODY = {
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


@answers(
    router,
    AddFiles,
    openapi_extra={"requestBody": _BODY},
    responses=documented(CollectionNotFound, InvalidRequest, Conflict)
    | documented(BodyTooLarge, UnsupportedMediaType, Overloaded, InsufficientStorage)
    | {202: {"model": Task, "description": "They are on disk; `Location` leads to the task."}},
)
async def add_files(collection: str, request: Request, service: TheService) -> Response:
    """Read files as `dsearch index` reads them, and store them as documents.

    At most 1000 files and 256 MiB in one request, of which each has at most 64 MiB, unpacked too. Once
    answered they survive a restart. A document's id is the name of its file as it was sent, with the folders
    in it; records of a table or of JSON lines have their own ids. A file of the same name as one that was
    sent before replaces it. The result of the task names each file with its documents, or with the reason why
    it has none; a file that cannot be read hinders no other. What a cancelled task has stored stays.
    """
    require_type(request, (MULTIPART,))
    boundary = boundary_of(request.headers["content-type"])
    await service.read(partial(_require_writable, service, collection))
    forms = service.tasks.forms
    upload = await forms.receive(request)

    def add() -> StoredTask:
        try:
            files = [asdict(file) for file in files_of_form(forms.place(upload), boundary)]
            return service.tasks.add("files", collection, {**upload, "files": files})
        except BaseException:
            forms.delete(upload)
            raise

    task = await service.finish(add)
    return json_answer(task.to_dict(), 202, {"Location": f"/v1/tasks/{task.id}"})


def _require_writable(service: TheService, collection: str) -> None:
    service.tasks.require_room(collection)
    with service.catalogue.writing(collection) as opened:
        opened.store.require_writable()

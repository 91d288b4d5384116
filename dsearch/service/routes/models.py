"""Versions of a collection: list, promote, judge, delete; heads as tensors, to read, to add and to try."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from dsearch.engine import MAX_HEADS, calls, head_bytes, parts_from_file, request_of_file
from dsearch.errors import (
    Conflict,
    CorruptData,
    DimensionMismatch,
    Gone,
    InsufficientStorage,
    ModelNotFound,
)
from dsearch.jobs import SavingJob
from dsearch.operations import (
    AddDraft,
    AddModel,
    DeleteModel,
    DropDraft,
    JudgeModel,
    ListModels,
    Promote,
    ReadDraft,
    ReadHead,
    Remember,
    Rollback,
    RollbackRows,
    SaveModel,
)
from dsearch.operations.tasks import SaveRequest
from dsearch.results import DraftAdded, MemoryResult, Models
from dsearch.service.errors import Overloaded, public_record
from dsearch.service.routes.served import Asked, by_the_engine, serves
from dsearch.service.schemas.declared import model_of
from dsearch.service.state import Service
from dsearch.service.tasks.store import StoredTask
from dsearch.service.wire.json import TENSORS, json_answer
from dsearch.service.wire.problems import in_body
from dsearch.service.wire.requests import MAX_STREAM_BYTES, StrictRoute, limited, require_type

router = APIRouter(prefix="/v1/collections/{collection}/models", tags=["models"], route_class=StrictRoute)
drafts = APIRouter(prefix="/v1/collections/{collection}/heads", tags=["attention"], route_class=StrictRoute)
MAX_RECORD_BYTES = 64 * 1024
_BYTES: dict[str, Any] = {TENSORS: {"schema": {"type": "string", "format": "binary"}}}
_HEAD_SENT: dict[str, Any] = {
    "reads_body": True,
    "openapi_extra": {"requestBody": {"required": True, "content": _BYTES}},
}
_HEAD_READ: dict[str, Any] = {
    "response_class": Response,
    "responses": {200: {"content": _BYTES, "description": "The head's tensors."}},
}
_ADDED = (ModelNotFound, DimensionMismatch, Conflict)


@serves(router, ListModels)
async def list_models(asked: Asked, call: ListModels) -> Models:
    models = await asked.service.answer(call)
    public = [replace(model, record=public_record(model.record)) for model in models.models]
    return replace(models, models=public)


serves(router, Promote, ModelNotFound, Gone, Conflict, CorruptData)(by_the_engine)
serves(router, Rollback, Conflict, CorruptData)(by_the_engine)
serves(router, RollbackRows, CorruptData, InsufficientStorage)(by_the_engine)
serves(router, DeleteModel, ModelNotFound, Conflict)(by_the_engine)


@serves(router, Remember, Conflict, CorruptData, InsufficientStorage)
async def remember(asked: Asked, call: Remember) -> MemoryResult:
    def insert() -> MemoryResult:
        from dsearch.training import remember  # a server that only searches does not load training

        with asked.service.catalogue.writing(call.collection) as opened:
            return remember(opened, call.queries, call.judgements, accept=call.accept, key=asked.key)

    return await asked.service.writing.run(insert, characters=sum(map(len, call.queries.values())))


@serves(router, ReadHead, ModelNotFound, Gone, CorruptData, **_HEAD_READ)
async def get_head(asked: Asked, call: ReadHead) -> Response:
    def read() -> bytes:
        with asked.service.catalogue.using(call.collection) as opened:
            return head_bytes(opened.head(call.version))

    return Response(await asked.service.read(read), media_type=TENSORS)


@serves(router, AddModel, *_ADDED, InsufficientStorage, status_code=201, **_HEAD_SENT)
async def add_model(asked: Asked, call: AddModel) -> Response:
    """The body is what `GET …/models/{version}/head` gives, with other numbers; `record` in its metadata, a
    JSON object, is kept with it.
    """
    body = await _head_sent(call.collection, asked.request, asked.service)
    add = asked.service.catalogue.write(calls.add_head, call.collection, body, call.parent)
    return json_answer(await asked.service.writing.run(add), 201)


@serves(router, SaveModel, *_ADDED, InsufficientStorage, **_HEAD_SENT)
async def save_model(asked: Asked, call: SaveModel) -> Response:
    """The body holds a head's tensors, as of `GET …/models/{version}/head`, and under `query_encoder/` those
    of a query encoder that learned with it. `request` in its metadata is a JSON object: evidence (`queries`
    and `judgements`, or `before` and `after`), `parent`, `record`, and the options of the gate. It may be as
    long as the server's setting `model_upload_bytes` says, 512 MiB by default, and goes to disk meanwhile.
    """
    service, name = asked.service, call.collection
    require_type(asked.request, (TENSORS,))
    described = await service.read(partial(service.catalogue.describe, name))
    await service.read(partial(service.tasks.require_room, name))
    uploads = service.tasks.uploads
    upload = await uploads.receive(asked.request)

    def read() -> dict[str, Any]:
        place = uploads.verified(upload)
        try:
            save = model_of(SaveRequest).model_validate(request_of_file(place))
        except ValidationError as error:
            raise RequestValidationError(in_body(error)) from None
        given = save.model_dump(exclude_unset=True)
        own = {part: given.pop(part, None) for part in ("parent", "record", "encoder")}
        job = SavingJob(**given)
        job.check()
        parts_from_file(place, described.encoder["dimension"], own["encoder"])  # refused now if no model
        fields = job.to_dict() | own
        with service.catalogue.using(name) as opened:
            if fields["parent"] is not None:
                opened.store.model(fields["parent"])
            if fields["before"] is not None:
                fields["live"] = fields["live"] or opened.live_model
        return {**fields, **upload}

    def add() -> StoredTask:
        try:
            return service.tasks.add("save", name, read())
        except BaseException:
            uploads.delete(upload)
            raise

    task = await service.finish(add)
    return json_answer(task.to_dict(), 202, {"Location": f"/v1/tasks/{task.id}"})


@serves(router, JudgeModel, ModelNotFound, Conflict, CorruptData)
async def judge_model(asked: Asked, call: JudgeModel) -> Response:
    """The new version is served by its name: `"model": "v3"`."""
    service = asked.service
    job = SavingJob(**asdict(call.evidence), **call.options)
    job.check()

    def read() -> dict[str, Any]:
        with service.catalogue.using(call.collection) as opened:
            calls.require_unjudged(opened, call.version)
            live = job.live or opened.live_model
        return {**job.to_dict(), "version": call.version, "live": live}

    task = await service.finish(lambda: service.tasks.add("save", call.collection, read()))
    return json_answer(task.to_dict(), 202, {"Location": f"/v1/tasks/{task.id}"})


async def _head_sent(collection: str, request: Request, service: Service) -> bytes:
    """Read a head as tensors from a request, up to the most that one of this collection has."""
    require_type(request, (TENSORS,))
    described = await service.read(partial(service.catalogue.describe, collection))
    limit = largest_head_bytes(described.encoder["dimension"])
    return b"".join([part async for part in limited(request, limit)])


def largest_head_bytes(dimension: int) -> int:
    """The most that a valid head has, the factors of `MAX_HEADS` heads of full rank, W_K and W_V; or less."""
    return min(4 * (2 * MAX_HEADS + 2) * dimension**2 + MAX_RECORD_BYTES, MAX_STREAM_BYTES)


# ---- drafts


@serves(drafts, AddDraft, *_ADDED, Overloaded, status_code=201, **_HEAD_SENT)
async def add_draft(asked: Asked, call: AddDraft) -> Response:
    """The body is what `GET …/models/{version}/head` gives, with other numbers. Nothing is stored. A draft
    answers who handed it in, until ten minutes after its last use; of eight the oldest makes room.
    """
    body = await _head_sent(call.collection, asked.request, asked.service)

    def add() -> DraftAdded:
        with asked.service.catalogue.whole(call.collection) as opened:
            return calls.add_draft(opened, body, call.parent, asked.key)

    return json_answer(await asked.service.read(add), 201)


@serves(drafts, DropDraft)
async def drop_draft(asked: Asked, call: DropDraft) -> None:
    def drop() -> None:
        with asked.service.catalogue.whole(call.collection) as opened:
            calls.drop_draft(opened, call.draft, asked.key)

    await asked.service.read(drop)


@serves(drafts, ReadDraft, Gone, **_HEAD_READ)
async def get_draft(asked: Asked, call: ReadDraft) -> Response:
    def read() -> bytes:
        with asked.service.catalogue.whole(call.collection) as opened:
            return calls.draft_bytes(opened, call.draft, asked.key)

    return Response(await asked.service.read(read), media_type=TENSORS)

"""Models of a collection: list, promote, delete; heads as tensors, to read and to add."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError

from dsearch.engine import MAX_HEADS, Collection, calls, head_bytes, parts_from_file, request_of_file
from dsearch.errors import (
    CollectionNotFound,
    Conflict,
    CorruptData,
    DimensionMismatch,
    Gone,
    InsufficientStorage,
    InvalidRequest,
    ModelNotFound,
)
from dsearch.operations import (
    AddModel,
    DeleteModel,
    JudgeModel,
    ListModels,
    Promote,
    ReadHead,
    Remember,
    Rollback,
    RollbackRows,
    SaveModel,
)
from dsearch.results import MemoryResult
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType, public_record
from dsearch.service.feedback import asker
from dsearch.service.schemas.search import Version
from dsearch.service.schemas.tasks import JudgeRequest, RememberRequest, RowsRequest, SaveRequest
from dsearch.service.state import Service, TheService
from dsearch.service.tasks.store import StoredTask
from dsearch.service.wire.declared_routes import answers
from dsearch.service.wire.json import TENSORS, json_answer
from dsearch.service.wire.problems import documented, in_body
from dsearch.service.wire.requests import (
    MAX_STREAM_BYTES,
    RequestModel,
    StrictRoute,
    limited,
    require_type,
)

router = APIRouter(prefix="/v1/collections/{collection}/models", tags=["models"], route_class=StrictRoute)


@answers(router, ListModels, responses=documented(CollectionNotFound, InvalidRequest))
async def list_models(collection: str, service: TheService) -> Response:
    """List every version with its record; v0 is the untrained one."""
    models = await service.answer(ListModels(collection))
    public = [replace(model, record=public_record(model.record)) for model in models.models]
    return json_answer(replace(models, models=public))


@answers(
    router,
    Promote,
    responses=documented(
        CollectionNotFound, ModelNotFound, Gone, InvalidRequest, Conflict, CorruptData, Overloaded
    ),
)
async def promote_model(collection: str, version: str, service: TheService) -> Response:
    """Make a version live. Nothing is rebuilt; to undo it, promote `previous`."""
    return json_answer(await service.answer(Promote(collection, version)))


@answers(
    router,
    Rollback,
    responses=documented(CollectionNotFound, InvalidRequest, Conflict, CorruptData, Overloaded),
)
async def rollback_model(collection: str, service: TheService) -> Response:
    """Make the previously live version live again."""
    return json_answer(await service.answer(Rollback(collection)))


@answers(
    router,
    RollbackRows,
    responses=documented(CollectionNotFound, InvalidRequest, InvalidJson, CorruptData, BodyTooLarge)
    | documented(UnsupportedMediaType, Overloaded, InsufficientStorage),
)
async def rollback_rows(collection: str, body: RowsRequest, service: TheService) -> Response:
    """Drop the rows of the query memory that later operations wrote; versions stay."""
    return json_answer(await service.answer(RollbackRows(collection, body.sequence)))


@answers(
    router,
    Remember,
    responses=documented(CollectionNotFound, InvalidRequest, InvalidJson, Conflict, CorruptData, BodyTooLarge)
    | documented(UnsupportedMediaType, Overloaded, InsufficientStorage),
)
async def remember(collection: str, body: RememberRequest, request: Request, service: TheService) -> Response:
    """Add judged queries to the memory of the live version, at once and without training.

    Later searches that resemble one of them find its documents. To undo it, roll back the rows.
    """
    insert = service.catalogue.write(
        _remember, collection, body.queries, body.judgements, accept=body.accept, key=asker(request)
    )
    characters = sum(map(len, body.queries.values()))
    return json_answer(await service.writing.run(insert, characters=characters))


def _remember(
    collection: Collection,
    queries: dict[str, str],
    judgements: dict[str, dict[str, float]],
    *,
    accept: bool,
    key: str,
) -> MemoryResult:
    from dsearch.training import remember  # a server that only searches does not load training

    return remember(collection, queries, judgements, accept=accept, key=key)


@answers(
    router,
    DeleteModel,
    responses=documented(CollectionNotFound, ModelNotFound, InvalidRequest, Conflict, Overloaded),
)
async def delete_model(collection: str, version: str, service: TheService) -> Response:
    """Delete a version that is not live. What was trained from it goes on with its parent."""
    await service.answer(DeleteModel(collection, version))
    return Response(status_code=204)


MAX_RECORD_BYTES = 64 * 1024

_BYTES: dict[str, Any] = {TENSORS: {"schema": {"type": "string", "format": "binary"}}}


class AddParameters(RequestModel):
    """Origin of a head."""

    parent: Version | None = Field(
        None, description="the version that it was trained from; the live one if not given"
    )


@answers(
    router,
    ReadHead,
    response_class=Response,
    responses=documented(CollectionNotFound, ModelNotFound, Gone, InvalidRequest, CorruptData)
    | {200: {"content": _BYTES, "description": "The head's tensors."}},
)
async def get_head(collection: str, version: str, service: TheService) -> Response:
    """Return the tensors of a version's head; for v0, those that training starts from."""

    def read() -> bytes:
        with service.catalogue.using(collection) as opened:
            return head_bytes(opened.head(version))

    return Response(await service.read(read), media_type=TENSORS)


@answers(
    router,
    AddModel,
    status_code=201,
    openapi_extra={"requestBody": {"required": True, "content": _BYTES}},
    responses=documented(CollectionNotFound, ModelNotFound, InvalidRequest, DimensionMismatch, Conflict)
    | documented(BodyTooLarge, UnsupportedMediaType, Overloaded, InsufficientStorage),
)
async def add_model(
    collection: str, request: Request, service: TheService, parameters: Annotated[AddParameters, Query()]
) -> Response:
    """Add a head that was trained elsewhere as a new version. It is not live: promote it.

    The body is what `GET …/models/{version}/head` gives, with other numbers; `record` in its metadata, a JSON
    object, is kept with it.
    """
    body = await head_body(collection, request, service)
    add = service.catalogue.write(calls.add_head, collection, body, parameters.parent)
    return json_answer(await service.writing.run(add), 201)


@answers(
    router,
    SaveModel,
    openapi_extra={"requestBody": {"required": True, "content": _BYTES}},
    responses=documented(CollectionNotFound, ModelNotFound, InvalidRequest, DimensionMismatch, Conflict)
    | documented(BodyTooLarge, UnsupportedMediaType, Overloaded, InsufficientStorage),
)
async def save_model(collection: str, request: Request, service: TheService) -> Response:
    """Judge a model that was trained elsewhere, and promote it if the evidence shows that it is better.

    The body holds a head's tensors, as of `GET …/models/{version}/head`, and under `query_encoder/` those of
    a query encoder that learned with it. `request` in its metadata is a JSON object: evidence (`queries` and
    `judgements`, or `before` and `after`), `parent`, `record`, and the options of the gate. It may be as long
    as the server's setting `model_upload_bytes` says, 512 MiB by default, and goes to disk as it arrives.
    """
    require_type(request, (TENSORS,))
    described = await service.read(partial(service.catalogue.describe, collection))
    await service.read(partial(service.tasks.require_room, collection))
    uploads = service.tasks.uploads
    upload = await uploads.receive(request)

    def read() -> dict[str, Any]:
        place = uploads.verified(upload)
        try:
            save = SaveRequest.model_validate(request_of_file(place))
        except ValidationError as error:
            raise RequestValidationError(in_body(error)) from None
        fields = save.to_dict()
        parts_from_file(place, described.encoder["dimension"], fields["encoder"])  # refused now if no model
        with service.catalogue.using(collection) as opened:
            if fields["parent"] is not None:
                opened.store.model(fields["parent"])
            if fields["before"] is not None:
                fields["live"] = fields["live"] or opened.live_model
        return {**fields, **upload}

    def add() -> StoredTask:
        try:
            return service.tasks.add("save", collection, read())
        except BaseException:
            uploads.delete(upload)
            raise

    task = await service.finish(add)
    return json_answer(task.to_dict(), 202, {"Location": f"/v1/tasks/{task.id}"})


@answers(
    router,
    JudgeModel,
    responses=documented(
        CollectionNotFound, ModelNotFound, InvalidRequest, InvalidJson, Conflict, CorruptData
    )
    | documented(BodyTooLarge, UnsupportedMediaType, Overloaded),
)
async def judge_model(collection: str, version: str, body: JudgeRequest, service: TheService) -> Response:
    """Judge a version that was kept without a verdict, and promote it if the scores show that it is better.

    The scores are of held-out examples, by the live version and by this one, served by its name
    (`"model": "v3"`). A version is judged once, and promoted in place of `live` alone: if another one became
    live meanwhile, it is kept, and can be judged again.
    """

    def read() -> dict[str, Any]:
        with service.catalogue.using(collection) as opened:
            calls.require_unjudged(opened, version)
            live = body.live or opened.live_model
        return {**body.model_dump(by_alias=True), "version": version, "live": live}

    task = await service.finish(lambda: service.tasks.add("save", collection, read()))
    return json_answer(task.to_dict(), 202, {"Location": f"/v1/tasks/{task.id}"})


async def head_body(collection: str, request: Request, service: Service) -> bytes:
    """Read a head as tensors from a request, up to the most that one of this collection has."""
    require_type(request, (TENSORS,))
    described = await service.read(partial(service.catalogue.describe, collection))
    limit = largest_head_bytes(described.encoder["dimension"])
    return b"".join([part async for part in limited(request, limit)])


def largest_head_bytes(dimension: int) -> int:
    """The most that a valid head has, the factors of `MAX_HEADS` heads of full rank, W_K and W_V; or less."""
    return min(4 * (2 * MAX_HEADS + 2) * dimension**2 + MAX_RECORD_BYTES, MAX_STREAM_BYTES)

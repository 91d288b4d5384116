"""Draft heads: handed in to be asked by `attend` and `vjp` for a while."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from dsearch.engine import calls
from dsearch.errors import (
    CollectionNotFound,
    Conflict,
    DimensionMismatch,
    Gone,
    InvalidRequest,
    ModelNotFound,
)
from dsearch.operations import AddDraft, DropDraft, ReadDraft
from dsearch.results import DraftAdded
from dsearch.service.errors import BodyTooLarge, Overloaded, UnsupportedMediaType
from dsearch.service.feedback import asker
from dsearch.service.routes.models import AddParameters, head_body
from dsearch.service.state import TheService
from dsearch.service.wire.declared_routes import answers
from dsearch.service.wire.json import (
    TENSORS,
    json_answer,
)
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import StrictRoute

router = APIRouter(prefix="/v1/collections/{collection}", tags=["attention"], route_class=StrictRoute)
_BODY: dict[str, Any] = {TENSORS: {"schema": {"type": "string", "format": "binary"}}}


@answers(
    router,
    AddDraft,
    status_code=201,
    openapi_extra={"requestBody": {"required": True, "content": _BODY}},
    responses=documented(CollectionNotFound, ModelNotFound, InvalidRequest, DimensionMismatch, Conflict)
    | documented(BodyTooLarge, UnsupportedMediaType, Overloaded),
)
async def add_draft(
    collection: str, request: Request, service: TheService, parameters: Annotated[AddParameters, Query()]
) -> Response:
    """Hand a head in for a while: `attend` and `vjp` answer by it where they name it as `draft`.

    The body is what `GET …/models/{version}/head` gives, with other numbers. Nothing is stored. A draft
    answers who handed it in, until ten minutes after its last use; of eight the oldest makes room.
    """
    body = await head_body(collection, request, service)

    def add() -> DraftAdded:
        with service.catalogue.whole(collection) as opened:
            return calls.add_draft(opened, body, parameters.parent, asker(request))

    return json_answer(await service.read(add), 201)


@answers(router, DropDraft, responses=documented(CollectionNotFound, InvalidRequest))
async def drop_draft(collection: str, draft: str, request: Request, service: TheService) -> Response:
    """Forget a draft head; one that is gone already is no error."""

    def drop() -> None:
        with service.catalogue.whole(collection) as opened:
            calls.drop_draft(opened, draft, asker(request))

    await service.read(drop)
    return Response(status_code=204)


@answers(
    router,
    ReadDraft,
    response_class=Response,
    responses={200: {"content": _BODY, "description": "its tensors"}}
    | documented(CollectionNotFound, InvalidRequest, Gone),
)
async def get_draft(collection: str, draft: str, request: Request, service: TheService) -> Response:
    """Return the tensors of a draft head: to go on with, or to make a version by `POST …/models`."""

    def read() -> bytes:
        with service.catalogue.whole(collection) as opened:
            return calls.draft_bytes(opened, draft, asker(request))

    return Response(await service.read(read), media_type=TENSORS)

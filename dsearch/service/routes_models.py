"""Models of a collection: the versions, and which answers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from dsearch.engine import UNTRAINED
from dsearch.errors import CollectionNotFound, Conflict, CorruptData, InvalidRequest, ModelNotFound
from dsearch.service.answers_collections import ModelList, Promoted
from dsearch.service.errors import Overloaded
from dsearch.service.problems import documented
from dsearch.service.respond import json_answer
from dsearch.service.service import TheService
from dsearch.service.strict_route import StrictRoute

router = APIRouter(prefix="/v1/collections/{collection}/models", tags=["models"], route_class=StrictRoute)


@router.get("", response_model=ModelList, responses=documented(CollectionNotFound, InvalidRequest))
async def list_models(collection: str, service: TheService) -> Response:
    """Every version with what is known of it; v0 is the untrained one."""

    def read() -> dict[str, Any]:
        with service.catalogue.using(collection) as opened:
            live = opened.live_model
            known = [opened.store.model(UNTRAINED), *opened.store.models()]
        models = [
            {"version": one.version, "parent": one.parent, "live": one.version == live, "record": one.record}
            for one in known
        ]
        return {"live": live, "models": models}

    return json_answer(await service.read(read))


@router.post(
    "/{version}/promote",
    response_model=Promoted,
    responses=documented(
        CollectionNotFound, ModelNotFound, InvalidRequest, Conflict, CorruptData, Overloaded
    ),
)
async def promote_model(collection: str, version: str, service: TheService) -> Response:
    """Let a version answer from now on. Nothing is rebuilt; to undo it, promote `previous`."""

    def promote() -> dict[str, Any]:
        with service.catalogue.using(collection) as opened:
            previous = opened.live_model
            opened.promote(version)
            return {"model": version, "previous": previous, "sequence": opened.store.sequence}

    return json_answer(await service.writing.run(promote))


@router.post(
    "/rollback",
    response_model=Promoted,
    responses=documented(CollectionNotFound, InvalidRequest, Conflict, CorruptData, Overloaded),
)
async def rollback_model(collection: str, service: TheService) -> Response:
    """Let the version answer again that did before the live one was promoted."""

    def rollback() -> dict[str, Any]:
        with service.catalogue.using(collection) as opened:
            previous = opened.live_model
            version = opened.rollback()
            return {"model": version, "previous": previous, "sequence": opened.store.sequence}

    return json_answer(await service.writing.run(rollback))


@router.delete(
    "/{version}",
    status_code=204,
    responses=documented(CollectionNotFound, ModelNotFound, InvalidRequest, Conflict, Overloaded),
)
async def delete_model(collection: str, version: str, service: TheService) -> Response:
    """Delete a version that neither answers nor is another's parent."""

    def delete() -> None:
        with service.catalogue.using(collection) as opened:
            opened.delete_model(version)

    await service.writing.run(delete)
    return Response(status_code=204)

"""Aliases: second names of collections, which move from one to another in one step."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Response

from dsearch.errors import (
    CollectionExists,
    CollectionNotFound,
    Conflict,
    CorruptData,
    InsufficientStorage,
    InvalidRequest,
    NotFound,
)
from dsearch.operations import DropAlias, ListAliases, SetAlias
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.schemas.answers import AliasList
from dsearch.service.schemas.documents import AliasRequest
from dsearch.service.state import TheService
from dsearch.service.wire.declared_routes import answers
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import StrictRoute

router = APIRouter(prefix="/v1/aliases", tags=["collections"], route_class=StrictRoute)


@answers(router, ListAliases, response_model=AliasList, responses=documented(CorruptData))
async def list_aliases(service: TheService) -> Response:
    """List every alias with its collection."""
    return json_answer({"aliases": await service.read(service.catalogue.engine.aliases)})


@answers(
    router,
    SetAlias,
    responses=documented(
        *(CollectionNotFound, InvalidRequest, CollectionExists, Conflict, CorruptData, Overloaded),
        *(InvalidJson, BodyTooLarge, UnsupportedMediaType, InsufficientStorage),
    ),
)
async def set_alias(alias: str, body: AliasRequest, service: TheService) -> Response:
    """Point an alias at a collection, whatever it pointed at. The change is atomic."""
    set_to = partial(service.catalogue.set_alias, alias, body.collection)
    return json_answer(await service.writing.run(set_to))


@answers(
    router,
    DropAlias,
    responses=documented(NotFound, Conflict, CorruptData, InvalidRequest, Overloaded, InsufficientStorage),
)
async def delete_alias(alias: str, service: TheService) -> Response:
    """Remove an alias; the collection stays."""
    await service.writing.run(partial(service.catalogue.engine.drop_alias, alias))
    return Response(status_code=204)

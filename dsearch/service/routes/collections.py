"""Collections: list, create, inspect, delete; their aliases and statistics."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Response

from dsearch.engine import PassageOptions, statistics
from dsearch.errors import (
    CollectionExists,
    CollectionNotFound,
    Conflict,
    CorruptData,
    EncoderUnavailable,
    InsufficientStorage,
    NotFound,
)
from dsearch.operations import (
    CreateCollection,
    DeleteCollection,
    DescribeCollection,
    DropAlias,
    ListAliases,
    ListCollections,
    ReadStatistics,
    SetAlias,
)
from dsearch.results import AliasSet, CollectionInfo
from dsearch.service.errors import public_encoder, without_home
from dsearch.service.routes.served import Asked, serves
from dsearch.service.schemas.answers import AliasList, CollectionList, StatisticsAnswer
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.requests import StrictRoute

router = APIRouter(prefix="/v1", tags=["collections"], route_class=StrictRoute)


@serves(router, ListCollections, response_model=CollectionList)
async def list_collections(asked: Asked, _: ListCollections) -> dict[str, Any]:
    return {"collections": await asked.service.read(asked.service.catalogue.describe_all)}


@serves(router, DescribeCollection)
async def get_collection(asked: Asked, call: DescribeCollection) -> CollectionInfo:
    return await asked.service.read(partial(asked.service.catalogue.describe, call.name))


@serves(
    router,
    CreateCollection,
    *(Conflict, EncoderUnavailable),
    needs_body=False,
    responses={201: {"model": CollectionInfo, "description": "It was made."}},
)
async def create_collection(asked: Asked, call: CreateCollection) -> Response:
    """No body is needed."""
    catalogue = asked.service.catalogue

    def create() -> tuple[bool, CollectionInfo]:  # both at once: what was made is answered in time
        passages = None if call.passages is None else PassageOptions(**call.passages)
        created = catalogue.create(
            call.name, call.language, passages, call.kind, call.dimension, call.search_fields
        )
        return created, catalogue.describe(call.name)

    created, described = await asked.service.writing.run(create)
    return json_answer(described, 201 if created else 200)


@serves(router, DeleteCollection, Conflict)
async def delete_collection(asked: Asked, call: DeleteCollection) -> None:
    """It is gone once the requests that use it have ended."""
    await asked.service.writing.run(partial(asked.service.catalogue.drop, call.name))


@serves(router, ReadStatistics, response_model=StatisticsAnswer)
async def get_statistics(asked: Asked, call: ReadStatistics) -> dict[str, Any]:
    described = await asked.service.read(asked.service.catalogue.call(statistics, call.name))
    if (problem := described["rebuild"]["problem"]) is not None:
        described["rebuild"]["problem"] = without_home(problem)
    if (encoder := described["encoder"]) is not None:
        described["encoder"] = encoder | {"name": public_encoder(encoder["name"])}
    return described


# ---- aliases


@serves(router, ListAliases, CorruptData, response_model=AliasList)
async def list_aliases(asked: Asked, _: ListAliases) -> dict[str, Any]:
    return {"aliases": await asked.service.read(asked.service.catalogue.engine.aliases)}


@serves(router, SetAlias, CollectionNotFound, CollectionExists, Conflict, CorruptData, InsufficientStorage)
async def set_alias(asked: Asked, call: SetAlias) -> AliasSet:
    set_to = partial(asked.service.catalogue.set_alias, call.alias, call.collection)
    return await asked.service.writing.run(set_to)


@serves(router, DropAlias, NotFound, Conflict, CorruptData, InsufficientStorage)
async def drop_alias(asked: Asked, call: DropAlias) -> None:
    await asked.service.writing.run(partial(asked.service.catalogue.engine.drop_alias, call.alias))

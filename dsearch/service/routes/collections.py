"""Collections: list, create, inspect, delete."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Response

from dsearch.engine import PassageOptions
from dsearch.errors import CollectionNotFound, Conflict, EncoderUnavailable, InvalidRequest
from dsearch.operations import CreateCollection, DeleteCollection, DescribeCollection, ListCollections
from dsearch.results import CollectionInfo
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.schemas.answers import CollectionList
from dsearch.service.schemas.documents import CreateRequest
from dsearch.service.state import TheService
from dsearch.service.wire.declared_routes import answers
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import StrictRoute

router = APIRouter(prefix="/v1/collections", tags=["collections"], route_class=StrictRoute)


@answers(router, ListCollections, response_model=CollectionList)
async def list_collections(service: TheService) -> Response:
    """List every collection, by name."""
    return json_answer({"collections": await service.read(service.catalogue.describe_all)})


@answers(router, DescribeCollection, responses=documented(CollectionNotFound, InvalidRequest))
async def get_collection(collection: str, service: TheService) -> Response:
    """Describe a collection."""
    return json_answer(await service.read(partial(service.catalogue.describe, collection)))


@answers(
    router,
    CreateCollection,
    responses=documented(InvalidRequest, InvalidJson, Conflict, EncoderUnavailable, Overloaded)
    | documented(BodyTooLarge, UnsupportedMediaType)
    | {201: {"model": CollectionInfo, "description": "It was made."}},
)
async def create_collection(
    collection: str, service: TheService, body: CreateRequest | None = None
) -> Response:
    """Create a collection for the server's encoder, or for embeddings of your own.

    An existing one is unchanged. No body is needed.
    """
    make = partial(service.catalogue.create, collection)
    if body is not None:
        cut = body.passages
        passages = None if cut is None else PassageOptions(cut.tokens, cut.overlap, none=cut.none)
        make = partial(make, body.language, passages, body.kind, body.dimension, body.search_fields)
    created, described = await service.writing.run(
        lambda: (make(), service.catalogue.describe(collection))  # both: what was made is answered in time
    )
    return json_answer(described, 201 if created else 200)


@answers(
    router, DeleteCollection, responses=documented(CollectionNotFound, InvalidRequest, Conflict, Overloaded)
)
async def delete_collection(collection: str, service: TheService) -> Response:
    """Delete a collection with everything in it, once the requests that use it have ended."""
    await service.writing.run(partial(service.catalogue.drop, collection))
    return Response(status_code=204)

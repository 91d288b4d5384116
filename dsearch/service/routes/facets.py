"""Facets: counts of metadata values."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import Field

from dsearch.errors import CollectionNotFound, InvalidRequest
from dsearch.service.collections import Catalogue
from dsearch.service.errors import BodyTooLarge, InvalidJson, UnsupportedMediaType
from dsearch.service.middleware.strict_route import StrictRoute
from dsearch.service.schemas.documents import (
    MAX_FACET_FIELDS,
    FacetsAnswer,
    FacetsRequest,
    FacetValues,
    FieldPath,
)
from dsearch.service.schemas.search import FilterText, tree_of
from dsearch.service.state import TheService
from dsearch.service.wire.fields import Given
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.store import Filter

router = APIRouter(prefix="/v1/collections/{collection}/facets", tags=["documents"], route_class=StrictRoute)


class FacetsParameters(Given):
    """The same in the URL."""

    field: Annotated[list[FieldPath], Field(min_length=1, max_length=MAX_FACET_FIELDS)] = Field(
        description="a dotted path; may be given several times"
    )
    filter: FilterText | None = Field(None, description="as JSON")
    limit: FacetValues = Field(10, description="values of each field, the most frequent first")


@router.post(
    "",
    response_model=FacetsAnswer,
    responses=documented(CollectionNotFound, InvalidRequest, InvalidJson, BodyTooLarge, UnsupportedMediaType),
)
async def count_facets(collection: str, asked: FacetsRequest, service: TheService) -> Response:
    """Count the documents with each value of the metadata's fields, among those that match a filter."""
    count = partial(_facets, service.catalogue, collection, asked.fields, asked.tree(), asked.limit)
    return json_answer(await service.read(count))


@router.get(
    "", response_model=FacetsAnswer, responses=documented(CollectionNotFound, InvalidRequest, InvalidJson)
)
async def count_facets_by_url(
    collection: str, asked: Annotated[FacetsParameters, Query()], service: TheService
) -> Response:
    """Count values as above, with the request in the URL."""
    tree = tree_of(asked.filter)
    count = partial(_facets, service.catalogue, collection, asked.field, tree, asked.limit)
    return json_answer(await service.read(count))


def _facets(
    catalogue: Catalogue, name: str, fields: list[str], tree: Filter | None, limit: int
) -> dict[str, Any]:
    with catalogue.using(name) as collection:
        store = collection.store
        facets = {
            field: [
                {"value": found.value, "documents": found.documents}
                for found in store.facets(field, tree, limit)
            ]
            for field in fields
        }
        return {"documents": store.count(tree).documents, "facets": facets}

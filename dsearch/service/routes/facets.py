"""Facets: counts of metadata values."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from dsearch.errors import CollectionNotFound, InvalidRequest
from dsearch.operations import CountFacets
from dsearch.results import Facets
from dsearch.service.errors import BodyTooLarge, InvalidJson, UnsupportedMediaType
from dsearch.service.schemas.documents import (
    MAX_FACET_FIELDS,
    FacetsRequest,
    FacetValues,
    FieldPath,
)
from dsearch.service.schemas.search import FilterText, tree_of
from dsearch.service.state import Service, TheService
from dsearch.service.wire.declared_routes import answers
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import RequestModel, StrictRoute
from dsearch.store import Filter

router = APIRouter(prefix="/v1/collections/{collection}/facets", tags=["documents"], route_class=StrictRoute)


class FacetsParameters(RequestModel):
    """The same in the URL."""

    field: Annotated[list[FieldPath], Field(min_length=1, max_length=MAX_FACET_FIELDS)] = Field(
        description="a dotted path; may be given several times", examples=[["year"]]
    )
    filter: FilterText | None = Field(None, description="as JSON", examples=['{"year": {"gte": 2017}}'])
    limit: FacetValues = Field(10, description="values of each field, the most frequent first")


@answers(
    router,
    CountFacets,
    responses=documented(CollectionNotFound, InvalidRequest, InvalidJson, BodyTooLarge, UnsupportedMediaType),
)
async def count_facets(collection: str, body: FacetsRequest, service: TheService) -> Response:
    """Count the documents with each value of the metadata's fields, among those that match a filter."""
    return await _counted(service, collection, body.fields, body.tree(), body.limit)


@router.get("", response_model=Facets, responses=documented(CollectionNotFound, InvalidRequest, InvalidJson))
async def count_facets_by_url(
    collection: str, parameters: Annotated[FacetsParameters, Query()], service: TheService
) -> Response:
    """Count values as above, with the request in the URL."""
    return await _counted(service, collection, parameters.field, tree_of(parameters.filter), parameters.limit)


async def _counted(
    service: Service, collection: str, fields: list[str], tree: Filter | None, limit: int
) -> Response:
    return json_answer(await service.answer(CountFacets(collection, fields, filter=tree, limit=limit)))

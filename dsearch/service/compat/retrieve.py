"""`POST /retrieve`: what search agents in reinforcement learning call (Search-R1, verl)."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from dsearch.declared import Values
from dsearch.errors import (
    CollectionNotFound,
    EncoderUnavailable,
    InvalidRequest,
)
from dsearch.fields import MAX_QUERIES, QueryText
from dsearch.search_options import SearchOptions
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.feedback import asker
from dsearch.service.searching import Searches
from dsearch.service.state import Service, TheService
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import RequestModel, StrictRoute
from dsearch.types import Hit

MAX_TOP = 100

router = APIRouter(tags=["compatible"], route_class=StrictRoute)
_BODIES = documented(CollectionNotFound, InvalidRequest, InvalidJson, BodyTooLarge, UnsupportedMediaType)

CollectionParameter = Annotated[
    str | None,
    Query(
        max_length=64, description="where to search; may be left out where there is one", examples=["papers"]
    ),
]


class RetrieveRequest(RequestModel):
    """Queries of an agent."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"queries": ["what is a key?"], "topk": 3, "return_scores": True}]},
    )

    queries: Annotated[list[QueryText], Field(min_length=1, max_length=MAX_QUERIES)]
    topk: Annotated[int, Field(ge=1, le=MAX_TOP), Values(f"an integer from 1 to {MAX_TOP}")] | None = Field(
        3, description="number of documents for each query"
    )
    return_scores: Annotated[bool, Values("true or false")] = Field(
        False, description="whether each document stands beside its score"
    )


class RetrieveAnswer(BaseModel):
    """Documents of each query, best first."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "result": [[{"document": {"id": "d1", "contents": '"Keys"\nKeys are …'}, "score": 0.7}]],
                    "query_ids": ["0d9f1f6ab8f14bb0a1b1a7a3d1a4c0de"],
                }
            ]
        }
    )

    result: list[list[dict[str, Any]]] = Field(
        description="documents with id and contents: the title in quotes, then the text on the next line; "
        "with return_scores objects of document and score"
    )
    query_ids: list[str] = Field(description="one for each query, for feedback and outcomes")


@router.post(
    "/retrieve",
    response_model=RetrieveAnswer,
    responses=_BODIES | documented(Overloaded, EncoderUnavailable),
)
async def retrieve(
    body: RetrieveRequest, request: Request, service: TheService, collection: CollectionParameter = None
) -> Response:
    """Search with many queries, in the shape of Search-R1 and verl."""
    name = await _only(collection, service)
    searches = Searches(service.catalogue, name, SearchOptions(limit=body.topk or 3))
    results = await service.searching.run(
        partial(searches, body.queries), characters=sum(map(len, body.queries))
    )
    service.metrics.searched(name, results)
    rows: list[list[dict[str, Any]]] = []
    query_ids: list[str] = []
    for result in results:
        page, query_id, _ = service.impressions.show(name, result, key=asker(request))
        query_ids.append(query_id)
        rows.append([_row(hit, body.return_scores) for hit in page.hits])
    return json_answer({"result": rows, "query_ids": query_ids})


def _row(hit: Hit, scored: bool) -> dict[str, Any]:
    document = {"id": hit.id, "contents": f'"{hit.title}"\n{hit.text}'}
    return {"document": document, "score": hit.score} if scored else document


async def _only(collection: str | None, service: Service) -> str:
    """The collection that a request means.

    Raises:
        InvalidRequest: none was named, and there is none or more than one.
    """
    if collection is not None:
        return collection
    names = await service.read(service.catalogue.engine.names)
    if len(names) != 1:
        choices = ", ".join(names[:20]) or "none"
        raise InvalidRequest(f"collection is missing; name one: ?collection=NAME; there are: {choices}")
    return names[0]

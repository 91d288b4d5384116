"""Statistics of a collection: its generations, the changes since, bytes."""

from __future__ import annotations

from fastapi import APIRouter, Response

from dsearch.engine import statistics
from dsearch.errors import CollectionNotFound, InvalidRequest
from dsearch.operations import ReadStatistics
from dsearch.service.errors import public_encoder, without_home
from dsearch.service.schemas.answers import StatisticsAnswer
from dsearch.service.state import TheService
from dsearch.service.wire.declared_routes import answers
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import StrictRoute

router = APIRouter(prefix="/v1/collections/{collection}/stats", tags=["collections"], route_class=StrictRoute)


@answers(
    router,
    ReadStatistics,
    response_model=StatisticsAnswer,
    responses=documented(CollectionNotFound, InvalidRequest),
)
async def get_statistics(collection: str, service: TheService) -> Response:
    """Return statistics: generations, writes since the last, storage of keys and their recall, bytes."""
    described = await service.read(service.catalogue.call(statistics, collection))
    if (problem := described["rebuild"]["problem"]) is not None:
        described["rebuild"]["problem"] = without_home(problem)
    if (encoder := described["encoder"]) is not None:
        described["encoder"] = encoder | {"name": public_encoder(encoder["name"])}
    return json_answer(described)

"""What a collection costs: its generations, what has changed since, bytes."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Response

from dsearch.engine import statistics
from dsearch.errors import CollectionNotFound, InvalidRequest
from dsearch.service.answers_statistics import StatisticsAnswer
from dsearch.service.catalogue import Catalogue
from dsearch.service.problems import documented
from dsearch.service.respond import json_answer
from dsearch.service.service import TheService
from dsearch.service.strict_route import StrictRoute

router = APIRouter(prefix="/v1/collections/{collection}/stats", tags=["collections"], route_class=StrictRoute)


@router.get("", response_model=StatisticsAnswer, responses=documented(CollectionNotFound, InvalidRequest))
async def get_statistics(collection: str, service: TheService) -> Response:
    """Generations, what was written since the last, how keys are kept and how well they find, bytes."""
    return json_answer(await service.read(partial(_statistics, service.catalogue, collection)))


def _statistics(catalogue: Catalogue, name: str) -> dict[str, Any]:
    with catalogue.using(name) as collection:
        return statistics(collection)

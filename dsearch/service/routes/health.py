"""Liveness, readiness and metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from dsearch.errors import EncoderUnavailable, NotFound
from dsearch.operations import Ready
from dsearch.service.errors import NotReady
from dsearch.service.metrics import MEDIA_TYPE
from dsearch.service.schemas.answers import Health
from dsearch.service.state import TheService
from dsearch.service.wire import problems
from dsearch.service.wire.declared_routes import answers
from dsearch.service.wire.json import json_answer

router = APIRouter(tags=["health"])


@router.get("/healthz", response_model=Health)
async def healthz() -> Response:
    """Report that the process lives."""
    return json_answer({"status": "ok"})


@answers(router, Ready, response_model=Health, responses=problems.documented(NotReady, EncoderUnavailable))
async def readyz(service: TheService) -> Response:
    """Report readiness for searches."""
    service.require_ready()
    return json_answer({"status": "ready"})


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": 'dsearch_queue_depth{worker="search"} 0.0\n'}}}},
)
async def metrics(service: TheService) -> Response:
    """Counters and gauges in Prometheus' text format; needs a key of scope read where keys are on."""
    return Response(await service.read(service.metrics.text), media_type=MEDIA_TYPE)


@router.get("/problems/{code}", responses=problems.documented(NotFound))
async def describe_problem(code: str) -> dict[str, Any]:
    """Describe a problem `type`: its code, status and title."""
    return problems.describe(code)

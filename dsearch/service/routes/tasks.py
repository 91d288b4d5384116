"""Tasks: training, evaluation and maintenance of collections, which take longer than a request should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from dsearch.engine.options import KeyOptions
from dsearch.errors import Conflict, InvalidRequest, NotFound
from dsearch.jobs import EvaluationJob, TrainingJob, TuningJob
from dsearch.operations import (
    CancelTask,
    Compact,
    Evaluate,
    ListTasks,
    Migrate,
    ReadTask,
    Refresh,
    Train,
    Tune,
)
from dsearch.service.errors import Overloaded
from dsearch.service.routes.served import Asked, serves
from dsearch.service.state import Service, TheService
from dsearch.service.tasks.store import TaskEvent, TaskKind, TaskNotFound
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import StrictRoute

WATCHERS = 64
_LOOK_EVERY_S = 0.2
_HEARTBEAT_S = 15.0
MAX_FULL_EPOCHS = 20

router = APIRouter(prefix="/v1", tags=["tasks"], route_class=StrictRoute)


@serves(router, Train)
async def train_model(asked: Asked, call: Train) -> Response:
    job = TrainingJob(queries=call.queries, judgements=call.judgements, **call.options)
    job.check()
    if job.scope == "full" and (job.epochs or 0) > MAX_FULL_EPOCHS:
        raise InvalidRequest(f"scope full has at most {MAX_FULL_EPOCHS} epochs on a server")
    if job.reranker is not None and job.reranker not in asked.service.rerankers:
        permitted = ", ".join(sorted(asked.service.rerankers)) or "none"
        raise InvalidRequest(
            f"reranker={job.reranker[:200]!r} is not among those of this server ({permitted}); leave it "
            "out, or add it to rerankers in the server's settings"
        )
    return await _take_on(asked, "train", call.collection, job.to_dict())


@serves(router, Tune)
async def tune_search(asked: Asked, call: Tune) -> Response:
    job = TuningJob(queries=call.queries, judgements=call.judgements, **call.options)
    job.check()
    return await _take_on(asked, "tune", call.collection, job.to_dict())


@serves(router, Evaluate)
async def evaluate_collection(asked: Asked, call: Evaluate) -> Response:
    request = call.arguments()
    del request["collection"]
    EvaluationJob(**request).check()
    return await _take_on(asked, "evaluate", call.collection, request)


@serves(router, Refresh, needs_body=False)
async def refresh_collection(asked: Asked, call: Refresh) -> Response:
    """It needs no body; one says how keys are kept from now on."""
    if call.kind is not None:
        KeyOptions(call.kind)  # one that there is not is refused now
    options = {name: value for name, value in call.arguments().items() if value is not None}
    del options["collection"]
    return await _take_on(asked, "refresh", call.collection, options)


@serves(router, Compact)
async def compact_collection(asked: Asked, call: Compact) -> Response:
    return await _take_on(asked, "compact", call.collection, {})


@serves(router, Migrate, Conflict, needs_body=False)
async def migrate_collection(asked: Asked, call: Migrate) -> Response:
    """It needs no body."""
    migrates_to = asked.service.migrates_to
    if call.encoder is not None and call.encoder != migrates_to:
        raise Conflict(
            f"encoder={call.encoder!r}: this server moves collections to {migrates_to!r}; set "
            "next_encoder in its settings and start it again, or end it and run dsearch migrate"
        )
    return await _take_on(asked, "migrate", call.collection, {})


async def _take_on(asked: Asked, kind: TaskKind, collection: str, request: dict[str, Any]) -> Response:
    task = await asked.service.finish(partial(asked.service.tasks.add, kind, collection, request))
    return json_answer(task.to_dict(), 202, {"Location": f"/v1/tasks/{task.id}"})


@serves(router, ListTasks)
async def list_tasks(asked: Asked, call: ListTasks) -> dict[str, Any]:
    before = None if call.cursor is None else int(call.cursor)
    find = partial(
        asked.service.tasks.store.list,
        call.limit + 1,
        before=before,
        collection=call.collection,
        state=call.state,
    )
    tasks = await asked.service.read(find)
    page = tasks[: call.limit]
    more = len(tasks) > len(page)
    return {"tasks": [task.to_dict() for task in page], "next": str(page[-1].number) if more else None}


@serves(router, ReadTask, TaskNotFound)
async def get_task(asked: Asked, call: ReadTask) -> dict[str, Any]:
    return (await asked.service.read(partial(asked.service.tasks.store.get, call.id))).to_dict()


@serves(router, CancelTask, TaskNotFound)
async def cancel_task(asked: Asked, call: CancelTask) -> dict[str, Any]:
    return (await asked.service.finish(partial(asked.service.tasks.cancel, call.id))).to_dict()


@router.get(
    "/tasks/{id}/events",
    response_class=StreamingResponse,
    responses=documented(TaskNotFound, Overloaded, NotFound, InvalidRequest)
    | {200: {"content": {"text/event-stream": {"example": 'id: 7\nevent: progress\ndata: {"done": 3}\n\n'}}}},
)
async def watch_task(
    id: str,
    service: TheService,
    last_event_id: Annotated[str | None, Header(description="go on after this event")] = None,
) -> Response:
    """Stream the events of a task as server-sent events: `progress`, `metric`, `headroom`, and at last `end`.

    After a broken connection the header `Last-Event-ID` resumes the stream.
    """
    after = _after(last_event_id)
    await service.read(partial(service.tasks.store.get, id))
    if service.watchers >= WATCHERS:
        raise Overloaded(f"{WATCHERS} clients watch tasks already; ask GET /v1/tasks/{id} now and then")
    return StreamingResponse(_events(service, id, after), media_type="text/event-stream")


async def _events(service: Service, id: str, after: int) -> AsyncIterator[bytes]:
    service.watchers += 1
    clock = asyncio.get_running_loop().time
    said = clock()
    try:
        while not service.leaving:  # a server that stops closes these; clients come back
            task, events = await run_in_threadpool(service.tasks.events, id, after)
            for event in events:
                after = event.number
                yield _written(event)
            if not events and task.has_ended:
                yield b"event: end\ndata: " + orjson.dumps(task.to_dict()) + b"\n\n"
                return
            if events:
                said = clock()
                continue
            if clock() - said > _HEARTBEAT_S:
                said = clock()
                yield b": waiting\n\n"
            await asyncio.sleep(_LOOK_EVERY_S)
    finally:
        service.watchers -= 1


def _written(event: TaskEvent) -> bytes:
    head = f"id: {event.number}\nevent: {event.kind}\ndata: ".encode()
    return head + orjson.dumps(event.data) + b"\n\n"


def _after(last_event_id: str | None) -> int:
    if last_event_id is None:
        return 0
    if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 16):
        raise InvalidRequest(f"Last-Event-ID: {last_event_id[:80]}; use the id of an event, or none")
    return int(last_event_id)

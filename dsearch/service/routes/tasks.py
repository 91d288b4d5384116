"""Tasks: training, evaluation and maintenance of collections, which take longer than a request should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from dsearch.engine.options import KeyOptions
from dsearch.errors import CollectionNotFound, Conflict, InvalidRequest, NotFound
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
from dsearch.service.errors import BodyTooLarge, InvalidJson, Overloaded, UnsupportedMediaType
from dsearch.service.schemas.tasks import (
    EvaluateRequest,
    MigrateRequest,
    RefreshRequest,
    TaskParameters,
    TrainRequest,
    TuneRequest,
)
from dsearch.service.state import Service, TheService
from dsearch.service.tasks.store import TaskEvent, TaskKind, TaskNotFound
from dsearch.service.wire.declared_routes import answers
from dsearch.service.wire.json import json_answer
from dsearch.service.wire.problems import documented
from dsearch.service.wire.requests import StrictRoute

WATCHERS = 64
_LOOK_EVERY_S = 0.2
_HEARTBEAT_S = 15.0

router = APIRouter(prefix="/v1", tags=["tasks"], route_class=StrictRoute)
_TAKEN = documented(CollectionNotFound, InvalidRequest, Overloaded)
_GIVEN = documented(BodyTooLarge, UnsupportedMediaType, InvalidJson)


@answers(router, Train, responses=_TAKEN | _GIVEN)
async def train_model(collection: str, body: TrainRequest, service: TheService) -> Response:
    """Train a new model version, and promote it if held-out queries show that it is better."""
    request = body.to_dict()
    reranker = request.get("reranker")
    if reranker is not None and reranker not in service.rerankers:
        permitted = ", ".join(sorted(service.rerankers)) or "none"
        raise InvalidRequest(
            f"reranker={reranker[:200]!r} is not among those of this server ({permitted}); leave it "
            "out, or add it to rerankers in the server's settings"
        )
    return await _take_on(service, "train", collection, request)


@answers(router, Tune, responses=_TAKEN | _GIVEN)
async def tune_search(collection: str, body: TuneRequest, service: TheService) -> Response:
    """Choose keyword weight, k1 and b, and hop strength on judgements; a few dozen queries suffice.

    Kept as a version, which answers if held-out queries say that it is better; later training starts from it.
    """
    return await _take_on(service, "tune", collection, body.to_dict())


@answers(router, Evaluate, responses=_TAKEN | _GIVEN)
async def evaluate_collection(collection: str, body: EvaluateRequest, service: TheService) -> Response:
    """Score dense, keyword, hybrid and trained search on judgements, side by side."""
    return await _take_on(service, "evaluate", collection, body.to_dict())


@answers(router, Refresh, responses=_TAKEN | _GIVEN)
async def refresh_collection(
    collection: str, service: TheService, body: RefreshRequest | None = None
) -> Response:
    """Rebuild the index from the stored embeddings, its keys projected by the live model.

    It needs no body; one says how keys are kept from now on.
    """
    options = {} if body is None else body.to_dict()
    if "kind" in options:
        KeyOptions(options["kind"])  # one that is none is refused now
    return await _take_on(service, "refresh", collection, options)


@answers(router, Compact, responses=_TAKEN)
async def compact_collection(collection: str, service: TheService) -> Response:
    """Compact the files, and make deleted and replaced data unreadable: no file contains it afterwards.

    Searches go on; while the database is written anew, writes wait. The result's `complete` says whether
    nothing is left; where it is false, `held` names generations that another process reads, `models` versions
    with an index of their own, `releases` what shards of a cluster answer with until the next publishing, and
    `note` says what to do about these.
    """
    return await _take_on(service, "compact", collection, {})


@answers(router, Migrate, responses=_TAKEN | _GIVEN | documented(Conflict))
async def migrate_collection(
    collection: str, service: TheService, body: MigrateRequest | None = None
) -> Response:
    """Encode a collection with the server's `next_encoder` beside the present state, then switch.

    Searches go on all the time, writes until the switch, at which some may be told to try again (503).
    Trained models stay behind. It needs no body, and which encoder it is the server's settings say.
    """
    if body is not None and body.encoder is not None and body.encoder != service.migrates_to:
        raise Conflict(
            f"encoder={body.encoder!r}: this server moves collections to {service.migrates_to!r}; set "
            "next_encoder in its settings and start it again, or end it and run dsearch migrate"
        )
    return await _take_on(service, "migrate", collection, {})


@answers(router, ListTasks, responses=documented(InvalidRequest))
async def list_tasks(service: TheService, parameters: Annotated[TaskParameters, Query()]) -> Response:
    """List tasks, the latest first; a thousand ended ones are stored."""
    before = None if parameters.cursor is None else int(parameters.cursor)
    find = partial(
        service.tasks.store.list,
        parameters.limit + 1,
        before=before,
        collection=parameters.collection,
        state=parameters.state,
    )
    tasks = await service.read(find)
    page = tasks[: parameters.limit]
    more = len(tasks) > len(page)
    return json_answer(
        {"tasks": [task.to_dict() for task in page], "next": str(page[-1].number) if more else None}
    )


@answers(router, ReadTask, responses=documented(TaskNotFound))
async def get_task(id: str, service: TheService) -> Response:
    """Return a task: its state, progress, remaining time, and its result or problem."""
    return json_answer((await service.read(partial(service.tasks.store.get, id))).to_dict())


@answers(router, CancelTask, responses=documented(TaskNotFound))
async def cancel_task(id: str, service: TheService) -> Response:
    """Cancel a task. A running one ends within seconds; its partial work is dropped."""
    return json_answer((await service.finish(partial(service.tasks.cancel, id))).to_dict())


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


async def _take_on(service: Service, kind: TaskKind, collection: str, request: dict[str, Any]) -> Response:
    task = await service.finish(partial(service.tasks.add, kind, collection, request))
    return json_answer(task.to_dict(), 202, {"Location": f"/v1/tasks/{task.id}"})


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

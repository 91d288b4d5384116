"""The tools over HTTP at `/mcp` (`Endpoint`), and on stdin and stdout (`run_stdio`).

HTTP uses the protocol's streamable transport. No sessions are kept: a request holds all that it needs, as in
the protocol's version of July 2026, and calls of older clients are answered in the same way. A restart
interrupts nothing, and any server can answer.

Keys, hosts and origins are checked around all routes (keys.py, guard.py). The scope of the
key, as noted by `Access`, decides which tools are listed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dsearch.engine import SearchEngine
from dsearch.errors import MissingExtra
from dsearch.service.mcp.tools import ToolCaller
from dsearch.service.state import Service
from dsearch.service.tasks.jobs import OpenEngine
from dsearch.service.wire.problems import problem
from dsearch.service.wire.requests import MAX_BODY_BYTES

if TYPE_CHECKING:
    from mcp.server import ServerRequestContext
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH = "/mcp"


def install(app: FastAPI, service: Service) -> Endpoint:
    """Add the route, outside of the OpenAPI document: it is another protocol's."""
    endpoint = Endpoint(service)
    app.router.routes.append(Route(PATH, endpoint=endpoint, include_in_schema=False))
    return endpoint


class Endpoint:
    """An ASGI application. The SDK is loaded by the first request: importing it takes half a second.

    Args:
        service: whose tools.
    """

    def __init__(self, service: Service):
        self._service = service
        self._manager: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it.

        Raises:
            MissingExtra: the SDK is not installed.
        """
        scope["route"] = _Named()  # by which logs and metrics call it
        if scope["method"] != "POST":
            detail = f"{scope['method'][:20]} {PATH}; use POST: there are no sessions to listen to or to end"
            await problem("method_not_allowed", detail, headers={"Allow": "POST"})(scope, receive, send)
            return
        self._manager = self._manager or self._start()
        manager = await asyncio.shield(self._manager)  # a client that goes away stops it for nobody else
        await manager.handle_request(scope, receive, send)

    async def stop(self) -> None:
        """End what the first request started."""
        self._stopped.set()
        if self._task is not None:
            with suppress(asyncio.CancelledError):
                await self._task

    def _start(self) -> asyncio.Future[StreamableHTTPSessionManager]:
        try:
            from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
            from mcp.server.transport_security import TransportSecuritySettings

            from dsearch.service.mcp.protocol import protocol_server
        except ImportError as error:
            raise MissingExtra(
                f"{PATH} needs the package mcp, which is not installed or not whole ({error}); run "
                "pip install 'dsearch[mcp]'"
            ) from error
        manager = StreamableHTTPSessionManager(
            protocol_server(self._service, caller_of),
            json_response=True,
            stateless=True,
            # Checked around all routes, by names that the settings allow.
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            max_request_body_size=MAX_BODY_BYTES,
        )
        running: asyncio.Future[StreamableHTTPSessionManager] = asyncio.get_running_loop().create_future()
        # A task of its own: the one that enters the manager has to leave it.
        self._task = asyncio.create_task(self._run(manager, running))
        return running

    async def _run(
        self,
        manager: StreamableHTTPSessionManager,
        running: asyncio.Future[StreamableHTTPSessionManager],
    ) -> None:
        async with manager.run():
            running.set_result(manager)
            await self._stopped.wait()


class _Named:
    path = PATH


def caller_of(context: ServerRequestContext[Any, Any]) -> ToolCaller:
    """Caller by what `Access` noted about the request."""
    request = context.request
    if request is None:
        return ToolCaller("read")
    state = request.state
    address = f"{request.url.scheme}://{request.headers.get('host', '')}"
    return ToolCaller(
        getattr(state, "key_scope", None) or "admin", getattr(state, "key_id", None) or "", address
    )


def run_stdio(
    engine: SearchEngine,
    *,
    writes: bool = False,
    open_engine: OpenEngine | None = None,
    task_memory_bytes: int | None = None,
    device: str = "cpu",
) -> None:
    """Answer an agent until it closes stdin; tasks that a server left go on meanwhile, as in a server.

    Args:
        engine: what it can search; the caller closes it afterwards.
        writes: whether it may add documents.
        open_engine: of tasks, as for `create_app`.
        task_memory_bytes: likewise.
        device: likewise.

    Raises:
        MissingExtra: the SDK is not installed.
    """
    try:
        from mcp.server.stdio import stdio_server

        from dsearch.service.mcp.protocol import protocol_server
    except ImportError as error:
        raise MissingExtra(
            f"dsearch mcp needs the package mcp, which is not installed or not whole ({error}); run "
            "pip install 'dsearch[mcp]'"
        ) from error

    async def run() -> None:
        service = Service(engine, open_engine=open_engine, task_memory_bytes=task_memory_bytes, device=device)
        service.start()
        caller = ToolCaller("write" if writes else "read", is_owner=True)
        server = protocol_server(service, lambda _: caller)
        try:
            async with stdio_server() as (reading, writing):
                await server.run(reading, writing, server.create_initialization_options())
        finally:
            await service.stop()

    asyncio.run(run())

"""`run_stdio`: the tools on stdin and stdout, for an agent on this machine that starts `dsearch mcp`."""

from __future__ import annotations

import asyncio

from dsearch.engine import SearchEngine
from dsearch.errors import MissingExtra
from dsearch.service.mcp.tools import ToolCaller
from dsearch.service.state import Service
from dsearch.service.tasks.readonly import OpenEngine


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

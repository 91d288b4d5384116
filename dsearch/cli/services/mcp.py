"""`dsearch mcp`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dsearch.cli import options
from dsearch.cli.session import opened_engine, reopening


def mcp(
    write: Annotated[bool, typer.Option("--write", help="Let the agent add documents.")] = False,
    home: options.HomeFolder = None,
    encoder: options.EncoderName = None,
    device: options.Device = None,
    backend: options.BackendName = None,
    threads: options.Threads = None,
) -> None:
    """Let an agent on this machine search the collections: MCP on stdin and stdout (extra mcp)."""
    from dsearch.service.mcp.transports import run_stdio

    own: dict[str, Any] = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    with opened_engine(home, readonly=not write, rebuild=write, **own) as (engine, settings):
        run_stdio(
            engine,
            writes=write,
            open_engine=reopening(settings),
            task_memory_bytes=settings.task_memory_bytes,
            device=settings.device,
        )

"""`run_server`: uvicorn with this service's limits, and a shutdown that loses no accepted request.

On SIGTERM or Ctrl-C the service first reports that it is not ready. For a moment it still accepts requests
and closes each connection with its answer, so that requests on their way arrive; then it accepts none.
Running requests have at most 10 s to finish; the rest is cancelled. The exit code is 0.

Slow clients are the task of a proxy in front of it; the guide "operating" names the settings. Here they hold
a connection and nothing else: a request takes its place in the service when the last of its body is in.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Sequence

import uvicorn
from fastapi import FastAPI

from dsearch.service.state import Service

DRAIN_S = 9
LEAVING_S = 0.5  # together below the 10 s in which a supervisor expects an end
KEEP_ALIVE_S = 5
SWITCH_S = 0.0005
# New objects before Python looks for cycles among them, then how often before it looks at middle-aged and at
# old ones. Requests leave none, so that what is new stays: pages and queries that are remembered. A middle
# pass sees three times as many objects, 20 ms; of twenty times as many it would stop all threads for 100 ms.
_GARBAGE = (10_000, 3, 300)
_OPEN_FILES = 8192
PROXIES = "127.0.0.1, ::1"  # whose X-Forwarded-Proto and X-Forwarded-For are believed


def run_server(
    app: FastAPI,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    sockets: Sequence[socket.socket] | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        app: made by `create_app`.
        host: address to bind to.
        port: port to bind to.
        sockets: that are bound already, in place of host and port.
    """
    _allow_open_files()
    # The thread that computes holds Python's lock for so long before the event loop gets it; with the usual
    # 5 ms each step of each request may wait that long.
    sys.setswitchinterval(SWITCH_S)
    # uvicorn raises the signal that stopped it once more when all is done; with these it ends there.
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, lambda *_: None)
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http="httptools",
        log_config=None,
        log_level="warning",
        access_log=False,  # it would write queries down
        server_header=False,
        # A proxy here says that its client came by HTTPS; addresses in answers begin as the client's does.
        proxy_headers=True,
        forwarded_allow_ips=PROXIES,
        lifespan="on",
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=DRAIN_S,
        backlog=1024,
    )
    server = _Server(config, service)
    # asyncio's loop is what all was measured with; uvicorn would take uvloop wherever an extra brings that.
    asyncio.run(server.serve(list(sockets) if sockets else None))


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service):
        super().__init__(config)
        self._service = service

    async def main_loop(self) -> None:
        settling = asyncio.create_task(_settle(self._service))
        try:
            await super().main_loop()
        finally:
            settling.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.leave()
        if not self.force_exit:
            await asyncio.sleep(LEAVING_S)
        await super().shutdown(sockets)


async def _settle(service: Service) -> None:
    """Exclude all loaded objects from Python's garbage collection, once loading has finished.

    Libraries, indexes and the encoder are some hundred thousand permanent objects. A pass over all of them
    stops every thread for a tenth of a second, several times a minute under load.
    """
    await service.warm()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE)


def _allow_open_files() -> None:
    """A connection is an open file, and the usual limit of 1024 is below what we let in."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

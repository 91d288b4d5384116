"""An application served by a thread of this process, for clients that need a socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from support.patience import LATEST_S


@contextmanager
def served_in_thread(app: Any, listening: socket.socket, **settings: Any) -> Iterator[uvicorn.Server]:
    """Serve at a socket until the end of the block; `settings` are uvicorn's."""
    server = uvicorn.Server(uvicorn.Config(app, loop="asyncio", log_config=None, lifespan="on", **settings))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    until = time.monotonic() + LATEST_S
    while not server.started:
        assert time.monotonic() < until
        time.sleep(0.01)
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join(LATEST_S)

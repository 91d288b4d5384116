"""A client of a server with the tiny encoder, which tasks open in processes of their own too."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from support.service.apps import patient_app
from support.service.in_thread import served_in_thread
from support.tiny_encoder import open_tiny

from dsearch.client import Client
from dsearch.engine import SearchEngine


@contextmanager
def tiny_client(engine: SearchEngine, encoder: Path) -> Iterator[Client]:
    """Serve an engine until the end of the block; `encoder`: folder of its encoder."""
    app = patient_app(engine, open_engine=partial(open_tiny, engine.home.path, encoder))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with served_in_thread(app, listening), Client(address) as connected:
            connected.ready()
            yield connected

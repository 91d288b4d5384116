"""The same layer in this process, or over HTTP from a server in a thread of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import dsearch
from dsearch.client import LocalEngine


@contextmanager
def served(engine: LocalEngine, name: str, http: bool, **options) -> Iterator[tuple]:
    """A client, a layer to train, and a function that gives the ids of its candidates."""
    if not http:
        yield (
            engine,
            dsearch.open_layer(engine.engine, name, **options),
            lambda la, out: la.ids(out.positions),
        )
        return
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = dsearch.create_app(engine.engine)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        with dsearch.Client(f"http://127.0.0.1:{listening.getsockname()[1]}", retries=8) as client:
            client.ready()
            encoder = engine.engine.encoder
            yield (
                client,
                dsearch.RemoteSearch(client, name, train_head=True, encoder=encoder, **options),
                lambda _, out: [line + [""] * (out.weights.shape[1] - len(line)) for line in out.ids],
            )
        server.should_exit = True
        thread.join()

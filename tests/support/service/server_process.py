"""A real server in a process of its own: prints its port when it answers. Not a test.

    python server_process.py HOME [JSON]

"no_tasks" in the JSON gives up every task at once, "next_encoder" lets it have one. At the end it prints how
many requests it had begun.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from support.service.apps import patient_app
from support.service.service_fakes import WordEncoder, newer_words, open_both, open_words

from dsearch.engine import SearchEngine, rebuild
from dsearch.errors import Cancelled, DsearchError
from dsearch.service import admission
from dsearch.service.errors import NotReady
from dsearch.service.server import run_server
from dsearch.service.state import Service
from dsearch.service.tasks import manager


def give_up(*_: Any, **__: Any) -> Any:
    """In place of a task's process."""
    raise Cancelled("this server begins no task")


def tell_when_started(service: Service, port: int) -> None:
    """Print the port. A command that finds a server which still loads reads the files itself."""
    with contextlib.suppress(DsearchError):  # loaded, and with damage that its answers name
        while True:
            try:
                service.require_ready()
                break
            except NotReady:
                time.sleep(0.005)
    print(port, flush=True)


def main() -> None:
    torch.set_num_threads(1)
    admission.TOLERATED_S, admission.FULL_S = 60.0, 120.0  # a busy machine is no reason for a test to fail
    asked = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    if asked.pop("no_tasks", False):
        manager.run_spawned = rebuild.run_spawned = give_up
    moving = asked.pop("next_encoder", False)
    with (
        SearchEngine(
            sys.argv[1], encoder=WordEncoder, next_encoder=newer_words if moving else None
        ) as engine,
        socket.create_server(("127.0.0.1", 0), backlog=256) as server,
    ):
        port = server.getsockname()[1]
        engine.home.announce(f"http://127.0.0.1:{port}")
        open_engine = partial(open_both if moving else open_words, Path(sys.argv[1]))
        to = "newer" if moving else "hashing"
        app = patient_app(engine, open_engine=open_engine, migrates_to=to)
        Thread(target=tell_when_started, args=(app.state.service, port), daemon=True).start()
        run_server(app, sockets=[server])
        print(app.state.service.metrics.accepted, flush=True)


if __name__ == "__main__":
    main()

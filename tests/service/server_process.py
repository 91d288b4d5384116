"""A real server in a process of its own: prints its port, then serves the home given. Not a test."""

from __future__ import annotations

import socket
import sys

import torch
import uvicorn
from service_fakes import WordEncoder

from dsearch.engine import SearchEngine
from dsearch.service import create_app


def main() -> None:
    torch.set_num_threads(1)
    with (
        SearchEngine(sys.argv[1], encoder=WordEncoder) as engine,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        print(server.getsockname()[1], flush=True)
        config = uvicorn.Config(create_app(engine), log_level="warning", server_header=False)
        uvicorn.Server(config).run(sockets=[server])


if __name__ == "__main__":
    main()

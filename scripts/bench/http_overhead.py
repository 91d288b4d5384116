#!/usr/bin/env python3
"""What HTTP costs on top of a search: the server's CPU for each request, thread by thread.

    python scripts/bench/http_overhead.py                   needs the encoder's weights
    python scripts/bench/http_overhead.py --fake            an encoder of the tests in place of a real one
    python scripts/bench/http_overhead.py --beside FOLDER   another version of dsearch too, in the same rounds
    python scripts/bench/http_overhead.py --connections 1 16 64

A client that waits for its answers, on one connection or on each of many; every server by turns, in many
short rounds, of which the cheapest counts: what others do on the machine only adds, by the caches that they
empty. CPU is what the kernel says that the threads of the server's process had: `loop` is the thread of the
event loop, `others` all the rest. Beside dsearch, with the same settings of uvicorn: an ASGI application of
six lines and a FastAPI route with a pydantic body, both answering what a search has answered; they say what
the tools cost.

Each connection has a query of its own, whose embedding is kept: no row has any encoding in it. `in process`
is the same search without a server, of as many queries at once as there are connections. What HTTP costs on
top is then loop + others - in process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
QUERY = {"query": "how are several exceptions raised together", "limit": 10}
WARM = 30  # requests before anything is counted
_KEPT_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Row:
    """A kind of request to one of the servers."""

    name: str
    server: str
    method: str
    path: str
    body: dict[str, Any] | None = None
    status: int = 200


SEARCH = "/v1/collections/bench/search"
ROWS = [
    Row("ASGI, six lines", "asgi", "POST", "/search", QUERY),
    Row("FastAPI and pydantic", "fastapi", "POST", "/search", QUERY),
    Row("dsearch, /healthz", "dsearch", "GET", "/healthz"),
    *(
        Row(f"dsearch, {mode}", "dsearch", "POST", SEARCH, {**QUERY, "mode": mode})
        for mode in ("dense", "hybrid")
    ),
]
REFUSED = Row("dsearch, refused", "dsearch, full", "POST", SEARCH, QUERY, 503)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--requests", type=int, default=200, help="of each row and round")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--connections", type=int, nargs="+", default=[1])
    parser.add_argument("--fake", action="store_true", help="an encoder of the tests in place of a real one")
    parser.add_argument("--beside", type=Path, help="a folder with another version of dsearch")
    options = parser.parse_args()
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    found: dict[tuple[int, str], list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        homes = {name: Path(folder) / name for name in ("dsearch", "other")}  # a server has its own
        build(homes["dsearch"], options.documents, options.fake)
        shutil.copytree(homes["dsearch"], homes["other"])
        here = Path(__file__).parents[2]
        trees = {"dsearch": here, **({"other": options.beside.resolve()} if options.beside else {})}
        rows = [*ROWS, REFUSED]
        if "other" in trees:
            others = (replace(row, server=row.server.replace("dsearch", "other")) for row in rows[2:])
            rows += [replace(row, name=f"other, {row.name}") for row in others]
        servers: dict[str, tuple[int, int]] = {}
        for name, tree in trees.items():
            for server, kind in (name, "dsearch"), (f"{name}, full", "full"):
                servers[server] = running.enter_context(
                    serving(kind, str(homes[name]), str(int(options.fake)), tree=tree)
                )
        sample = Path(folder) / "answer.json"
        with connected(servers["dsearch"][1]) as connection:
            connection.sendall(request_of(ROWS[-1]))
            sample.write_bytes(answer(connection, 200))
        for name in ("asgi", "fastapi"):
            servers[name] = running.enter_context(serving(name, str(sample), tree=here))
        alone: dict[tuple[int, str], list[float]] = {}
        for _ in range(options.rounds):
            for many, row in product(options.connections, rows):
                process, port = servers[row.server]
                took = measured(process, port, row, options.requests, many)
                found.setdefault((many, row.name), []).append(took)
        for _ in range(2):
            for many, row in product(options.connections, rows):
                if row.body and row.path == SEARCH and row.server in homes:
                    took = in_process(homes[row.server], row.body, options, trees[row.server], many)
                    alone.setdefault((many, row.name), []).append(took)
    show(found, alone)


def show(
    found: dict[tuple[int, str], list[tuple[float, float, float]]],
    alone: dict[tuple[int, str], list[float]],
) -> None:
    """The table."""
    print(
        f"load {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores; µs of CPU\n"
    )
    print("| connections | request | loop | others | whole | in process | on top | answer after, µs |")
    print("|" + "---|" * 8)
    for (many, name), rounds in found.items():
        loop, others, _ = min(rounds, key=lambda one: one[0] + one[1])
        took = min(one[2] for one in rounds)
        search = min(alone.get((many, name), [0.0]))
        cells = (loop, others, loop + others, search, loop + others - search, took)
        print(f"| {many} | {name} | " + " | ".join(f"{cell:.0f}" for cell in cells) + " |")


def measured(process: int, port: int, row: Row, count: int, many: int) -> tuple[float, float, float]:
    """Microseconds a request: CPU of the loop's thread, of the others, and the median until the answer.

    With many connections each sends one request and all wait for all answers, until `count` were sent.
    """
    requests = [request_of(row, number) for number in range(many)]
    took: list[float] = []
    rounds = max(1, count // many)
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(port)) for _ in range(many)]
        for _ in range(WARM):
            ask(connections, requests, row.status)
        before = threads_s(process)
        for _ in range(rounds):
            took += ask(connections, requests, row.status)
        after = threads_s(process)
    used = {thread: after[thread] - before.get(thread, 0.0) for thread in after}
    loop = used.pop(process)
    each = 1e6 / (rounds * many)
    return loop * each, sum(used.values()) * each, statistics.median(took) * 1e6


def request_of(row: Row, number: int = 0) -> bytes:
    """As connection `number` sends it."""
    body = b"" if row.body is None else json.dumps(row.body | {"query": query_of(number)}).encode()
    head = f"{row.method} {row.path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def query_of(number: int) -> str:
    """Those of several connections have most words in common: they cost the same."""
    return f"{QUERY['query']} {number}"


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    """A connection that is used again and again."""
    with socket.create_connection((HOST, port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def ask(connections: list[socket.socket], requests: list[bytes], status: int) -> list[float]:
    """Seconds until each connection's answer was there, all asked at once."""
    sent = time.perf_counter()
    for connection, request in zip(connections, requests, strict=True):
        connection.sendall(request)
    took: list[float] = []
    for connection in connections:
        answer(connection, status)
        took.append(time.perf_counter() - sent)
    return took


def answer(connection: socket.socket, status: int) -> bytes:
    """The body of the answer, which has this status."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 %d" % status):
        raise SystemExit(f"{head[:100]!r} {body[:300]!r}")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return body


def threads_s(process: int) -> dict[int, float]:
    """Processor seconds that each thread of a process has had."""
    used: dict[int, float] = {}
    for thread in Path(f"/proc/{process}/task").iterdir():
        used[int(thread.name)] = int((thread / "schedstat").read_text().split()[0]) / 1e9
    return used


def build(home: Path, count: int, fake: bool) -> None:
    """A collection of entries of Python's documentation."""
    from dsearch.corpus import python_documents

    with engine_of(home, fake) as engine:
        engine.create("bench").ingest(python_documents()[:count])


def engine_of(home: Path, fake: bool, *, readonly: bool = False) -> Any:
    """The engine, which its caller closes."""
    from dsearch.engine import SearchEngine

    if not fake:
        return SearchEngine(home, readonly=readonly, query_cache_bytes=_KEPT_BYTES)
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from support.fakes import HashingEncoder  # pyright: ignore[reportMissingImports]

    return SearchEngine(home, readonly=readonly, encoder=HashingEncoder, query_cache_bytes=_KEPT_BYTES)


def in_process(home: Path, body: dict[str, Any], options: argparse.Namespace, tree: Path, many: int) -> float:
    """Microseconds of CPU of a search without a server, one of `many` at once; in a process of its own."""
    command = [sys.executable, __file__, "--child", "search", str(home), str(int(options.fake))]
    command += [json.dumps(body), str(options.requests), str(options.rounds), str(many)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(tree))
    return float(done.stdout.split()[-1])


def environment(tree: Path) -> dict[str, str]:
    """In which `import dsearch` means that of a folder."""
    return {**os.environ, "PYTHONPATH": str(tree)}


@contextmanager
def serving(kind: str, *given: str, tree: Path) -> Iterator[tuple[int, int]]:
    """A server's process and port, when it answers."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--child", kind, str(port), *given]
    process = subprocess.Popen(command, env=environment(tree))
    try:
        until_ready(process, port)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(30)


def until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    """Return when /readyz says so."""
    request = request_of(Row("ready", "", "GET", "/readyz"))
    for _ in range(600):
        try:
            with connected(port) as connection:
                connection.sendall(request)
                if connection.recv(65536).startswith(b"HTTP/1.1 200"):
                    return
        except OSError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(f"the server did not become ready: {process.args!r:.200}")


# ---- in processes of their own


def serve_dsearch(port: str, home: str, fake: str) -> None:
    """Our service."""
    from dsearch.service import create_app
    from dsearch.service.server import run_server
    from dsearch.threads import set_threads

    set_threads(1)
    with engine_of(Path(home), fake == "1") as engine:
        run_server(create_app(engine), port=int(port))


def serve_full(port: str, home: str, fake: str) -> None:
    """Our service, under a load that leaves no place for anybody."""
    from dsearch.service import create_app
    from dsearch.service.server import run_server

    with engine_of(Path(home), fake == "1", readonly=True) as engine:
        app = create_app(engine)
        app.state.service.admission.searches = 1 << 40
        run_server(app, port=int(port))


def serve_asgi(port: str, sample: str) -> None:
    """The least that can be answered."""
    answer = Path(sample).read_bytes()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    run(app, port)


def serve_fastapi(port: str, sample: str) -> None:
    """What one would write oneself."""
    import orjson
    from fastapi import FastAPI, Response
    from pydantic import BaseModel

    class Asked(BaseModel):
        query: str
        limit: int = 10

    app, content = FastAPI(), json.loads(Path(sample).read_bytes())

    @app.get("/readyz")
    async def ready() -> dict[str, str]:
        return {"status": "ready"}

    async def search(asked: Asked) -> Response:
        return Response(orjson.dumps(content), media_type="application/json")

    search.__annotations__["asked"] = Asked  # the class is local: its name says nothing to FastAPI
    search.__annotations__["return"] = Response
    app.post("/search")(search)
    run(app, port)


def run(app: Any, port: str) -> None:
    """With what dsearch's own server has."""
    import uvicorn

    uvicorn.run(
        app, host=HOST, port=int(port), loop="asyncio", access_log=False, log_config=None, server_header=False
    )


def search(home: str, fake: str, body: str, count: str, rounds: str, many: str) -> None:
    """Print the microseconds of a search, those of the cheapest round."""
    from dsearch.threads import set_threads

    set_threads(1)
    asked = json.loads(body)
    asked.pop("query")
    queries = [query_of(number) for number in range(int(many))]
    times = max(1, int(count) // len(queries))
    took: list[float] = []
    with engine_of(Path(home), fake == "1", readonly=True) as engine:
        collection = engine.collection("bench")
        for _ in range(WARM):
            collection.search_batch(queries, **asked)
        for _ in range(int(rounds)):
            before = time.thread_time()
            for _ in range(times):
                collection.search_batch(queries, **asked)
            took.append((time.thread_time() - before) / (times * len(queries)) * 1e6)
    print(min(took))


CHILDREN = {
    "dsearch": serve_dsearch,
    "full": serve_full,
    "asgi": serve_asgi,
    "fastapi": serve_fastapi,
    "search": search,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        CHILDREN[sys.argv[2]](*sys.argv[3:])
    else:
        main()

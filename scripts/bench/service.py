#!/usr/bin/env python3
"""dsearch's service beside others: the same texts, the same encoder, the same machine, over loopback.

    python scripts/bench/service.py                             dsearch and scripts/bench/baseline_service.py
    python scripts/bench/service.py --backends torch openvino   dsearch by several back ends
    python scripts/bench/service.py --peers PYTHON              txtai's API too, from another environment
    python scripts/bench/service.py --cold-only --backends auto          cold starts and memory alone
    python scripts/bench/service.py --versions FOLDER FOLDER    other checkouts of dsearch: see versions.py

Each server is given the same documents over HTTP, one thread for its arithmetic and queries of one kind, none
twice, each answered with ten hits and their texts. Rounds go by turns, so a busy moment is everybody's;
medians. The client is this process: plain sockets, closed loop. CPU is that of the server's process.

All of it ends within --within seconds, about: rounds that there is no time for are left out, cold starts too,
and the table says how many rounds there were. --json is written anew after every measurement.

`work` is the CPU time of a query that was asked before: dsearch keeps its embedding, so what is left is
everything but the encoder. `cold` is from the start of the process to ready, with --cold-documents in a
collection, beside the bare import of torch and sentence-transformers; then memory after fifty searches:
resident, and what of it is the process' own, without pages of libraries and mapped files.

PYTHON has: pip install 'txtai[api]' sentence-transformers faiss-cpu
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

AT_A_TIME = 64  # documents a request
HOST = "127.0.0.1"
PATIENCE_MS = 30_000  # dsearch gives a search 2 s unless told; the others have no such limit
IMPORTS = "import torch, sentence_transformers, faiss"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backends", nargs="+", default=["torch"], help="of dsearch, one server each")
    parser.add_argument("--peers", help="the Python of an environment with txtai")
    parser.add_argument(
        "--versions",
        type=Path,
        nargs="+",
        metavar="FOLDER",
        help="other checkouts of dsearch, alone",
    )
    parser.add_argument("--threads", type=int, default=1, help="of each server's arithmetic")
    parser.add_argument("--cold-documents", type=int, default=100_000, help="0: no cold starts")
    parser.add_argument("--cold-only", action="store_true", help="cold starts alone")
    parser.add_argument("--within", type=float, default=900, help="seconds for everything, about")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    os.environ |= {name: str(options.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    ends = time.monotonic() + options.within
    figures: dict[str, Any] = {"indexed": {}, "asked": {}, "work": {}, "rounds": 0}

    def keep() -> None:
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1))

    texts, queries = corpus(options.documents)
    if options.versions:
        from versions import compare

        compare(options, texts, queries, ends)
        return
    started: list[System] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        started = [] if options.cold_only else systems(options, Path(folder), servers)
        for system in started:
            figures["indexed"][system.name] = asyncio.run(indexed(system, texts))
            print(f"{system.name}: {figures['indexed'][system.name]}", file=sys.stderr, flush=True)
            keep()
        for system in started:
            if system.name.startswith("dsearch"):
                same = iter(lambda: "the same words", None)
                figures["work"][system.name] = asyncio.run(asked(system, 1, options.seconds, same))
                keep()
        for number, found in rounds(started, queries, options, ends) if started else ():
            figures["asked"], figures["rounds"] = medians(found), number
            keep()
    if options.cold_documents and time.monotonic() < ends:
        figures["cold"], figures["memory"] = cold_starts(options, ends)
        keep()
    show(figures, [system.name for system in started], options.connections)


@dataclass
class System:
    """A server that runs, and how it is spoken to."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    def add(self, first: int, texts: list[str]) -> tuple[str, str, Any]:
        """Method, path and body that write documents."""
        if self.name == "txtai":
            return "POST", "/add", [{"id": first + i, "text": text} for i, text in enumerate(texts)]
        if self.name == "baseline":
            return "POST", "/documents", {"texts": texts}
        documents = [{"id": str(first + i), "text": text} for i, text in enumerate(texts)]
        return "PUT", "/v1/collections/bench/documents", documents

    def search(self, query: str) -> tuple[str, str, Any]:
        """Method, path and body that search."""
        if self.name == "txtai":
            return "GET", f"/search?query={quote(query)}&limit=10", None
        if self.name == "baseline":
            return "POST", "/search", {"query": query, "limit": 10}
        mode = "hybrid" if "hybrid" in self.name else "dense"
        return "POST", "/v1/collections/bench/search", {"query": query, "limit": 10, "mode": mode}


def corpus(count: int) -> tuple[list[str], Iterator[str]]:
    """Entries of Python's documentation, and queries of six of their words that never come again."""
    from dsearch.corpus import python_documents

    draw = np.random.default_rng(0)
    documents = python_documents()
    chosen = draw.permutation(len(documents))[:count]
    texts = [documents[int(one)].content for one in chosen]
    words = sorted({word for text in texts for word in text.split() if word.isalpha()})

    def queries() -> Iterator[str]:
        while True:
            yield " ".join(draw.choice(words, 6))

    return texts, queries()


def systems(options: argparse.Namespace, folder: Path, servers: ExitStack) -> list[System]:
    """Every server, ready."""
    from dsearch.encoder import DEFAULT_ENCODER
    from dsearch.encoder.weights import find_weights

    encoder = str(find_weights(DEFAULT_ENCODER).folder)
    here = Path(__file__).parent
    uvicorn = ["-m", "uvicorn", "--log-level", "error", "--port"]
    found: list[System] = []
    for backend in options.backends:
        # `dsearch backend` is asked by meaning alone, as the others are; the hybrid of the first one too.
        command = [sys.executable, "-m", "dsearch", "serve", "--backend", backend, "--home"]
        command += [str(folder / backend), "--threads", str(options.threads), "--port"]
        found.append(servers.enter_context(serving(f"dsearch {backend}", command, {}, "/readyz")))
    found.append(System(f"dsearch {options.backends[0]}, hybrid", found[0].port, found[0].process))
    command = [sys.executable, *uvicorn]
    environment = {"BASELINE_ENCODER": encoder, "PYTHONPATH": str(here)}
    found.append(
        servers.enter_context(serving("baseline", command, environment, "/docs", "baseline_service:app"))
    )
    if options.peers:
        config = folder / "txtai.yml"
        config.write_text(f"writable: true\nembeddings:\n  path: {encoder}\n  content: true\n  gpu: false\n")
        command = [options.peers, *uvicorn]
        environment = {"CONFIG": str(config)}
        found.append(servers.enter_context(serving("txtai", command, environment, "/docs", "txtai.api:app")))
    return found


@contextmanager
def serving(
    name: str, command: list[str], environment: dict[str, str], ready: str, *rest: str
) -> Iterator[System]:
    """A server on a free port, from when it is ready."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([*command, str(port), *rest], env={**os.environ, **environment})
    try:
        until_ready(process, port, ready)
        yield System(name, port, process)
    finally:
        process.terminate()
        process.wait(30)


def until_ready(process: subprocess.Popen[bytes], port: int, path: str) -> None:
    for _ in range(6000):
        if process.poll() is not None:
            raise SystemExit(f"{' '.join(map(str, process.args))[:200]} ended with {process.returncode}")  # type: ignore[arg-type]
        try:
            with socket.create_connection((HOST, port), timeout=5) as connection:
                connection.sendall(
                    f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()
                )
                if connection.recv(65536).startswith(b"HTTP/1.1 200"):
                    return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit("a server did not become ready")


class Refused(Exception):
    """The server has too much to do, and says for how many seconds to stay away."""


class Connection:
    """One connection, kept open."""

    def __init__(self, port: int):
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any) -> bytes:
        """The body of the answer.

        Raises:
            Refused: 503.
        """
        if self._streams is None:
            self._streams = await asyncio.open_connection(HOST, self._port)
        reader, writer = self._streams
        sent = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        head += f"X-Timeout-Ms: {PATIENCE_MS}\r\n"
        writer.write(f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
        headers = await reader.readuntil(b"\r\n\r\n")
        length = int(headers.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        content = await reader.readexactly(length)
        if headers.startswith(b"HTTP/1.1 503"):
            raise Refused(float(headers.lower().split(b"retry-after:")[1].split(b"\r\n")[0]))
        if not headers.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
            raise SystemExit(f"{method} {path}: {headers[:40]!r} {content[:300]!r}")
        return content

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def indexed(system: System, texts: list[str]) -> dict[str, float] | None:
    """Documents a second until all of them are found, by the clock and by the server's CPU.

    None where another system's server has them.
    """
    if "hybrid" in system.name:
        return None
    connection = Connection(system.port)
    if system.name.startswith("dsearch"):
        await connection.ask("PUT", "/v1/collections/bench", {})
    started, used = time.perf_counter(), processor_s(system.process.pid)
    for first in range(0, len(texts), AT_A_TIME):
        await connection.ask(*system.add(first, texts[first : first + AT_A_TIME]))
    if system.name == "txtai":
        await connection.ask("GET", "/index", None)
    took = time.perf_counter() - started
    connection.close()
    used = processor_s(system.process.pid) - used
    return {"documents_per_s": len(texts) / took, "documents_per_cpu_s": len(texts) / max(used, 0.01)}


async def asked(system: System, connections: int, seconds: float, queries: Iterator[str]) -> dict[str, float]:
    """Queries a second of so many connections that wait for their answers, and how long each took.

    A connection that is refused stays away for as long as it is told to.
    """
    took: list[float] = []
    refused = 0
    started, used = time.perf_counter(), processor_s(system.process.pid)

    async def one() -> None:
        connection = Connection(system.port)
        while time.perf_counter() - started < seconds:
            sent = time.perf_counter()
            try:
                answer = await connection.ask(*system.search(next(queries)))
            except Refused as told:
                nonlocal refused
                refused += 1
                await asyncio.sleep(told.args[0])
                continue
            took.append(time.perf_counter() - sent)
            assert b"text" in answer
        connection.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return {
        "queries_per_s": len(took) / (time.perf_counter() - started),
        "p50_ms": float(np.percentile(took, 50)) * 1000,
        "p99_ms": float(np.percentile(took, 99)) * 1000,
        "cpu_ms": (processor_s(system.process.pid) - used) / len(took) * 1000,
        "refused": refused,
    }


Found = dict[tuple[str, int], list[dict[str, float]]]


def rounds(
    started: list[System], queries: Iterator[str], options: argparse.Namespace, ends: float
) -> Iterator[tuple[int, Found]]:
    """Whole rounds so far, and figures by system and number of connections; after each measurement."""
    found: Found = {}
    for system in started:
        asyncio.run(asked(system, 2, 1.0, queries))  # warm
    for number in range(options.rounds):
        for connections in options.connections:
            for system in started[:: -1 if number % 2 else 1]:
                if time.monotonic() > ends:
                    return
                figures = asyncio.run(asked(system, connections, options.seconds, queries))
                found.setdefault((system.name, connections), []).append(figures)
                yield number, found
        yield number + 1, found


def medians(found: Found) -> dict[str, dict[int, dict[str, float]]]:
    """By system and number of connections."""
    middle: dict[str, dict[int, dict[str, float]]] = {}
    for (name, connections), several in found.items():
        middle.setdefault(name, {})[connections] = {
            key: statistics.median(one[key] for one in several) for key in several[0]
        }
    return middle


def cold_starts(
    options: argparse.Namespace, ends: float
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Seconds to ready by back end, and of the bare import; medians of rounds that go by turns.

    Memory after fifty searches too, in MiB: resident, and of the process' own.
    """
    from dsearch.encoder import encoder_cache, load_encoder
    from dsearch.engine import SearchEngine
    from dsearch.types import Document

    took: dict[str, list[float]] = {}
    memory: dict[str, tuple[float, float]] = {}
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        with SearchEngine(home) as engine:
            collection = engine.create("cold")
            for first in range(0, options.cold_documents, 5000):
                count = min(5000, options.cold_documents - first)
                vectors = draw.normal(size=(count, collection.store.dimension)).astype(np.float32)
                vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
                documents = [
                    Document(f"d{first + row}", " ".join(f"w{word}" for word in words))
                    for row, words in enumerate(draw.integers(0, 5000, (count, 12)).tolist())
                ]
                collection.store.upsert(documents, vectors)
            collection.refresh()
        for backend in options.backends:
            if backend != "torch":  # exported once, not at every start
                load_encoder(backend=backend, cache=encoder_cache(home))
        for number in range(options.rounds):
            if number and time.monotonic() > ends:
                break
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", IMPORTS], check=True)
            took.setdefault("bare import", []).append(time.perf_counter() - began)
            for backend in options.backends:
                command = [sys.executable, "-m", "dsearch", "serve", "--backend", backend]
                command += ["--home", str(home), "--port"]
                began = time.perf_counter()
                with serving(backend, command, {}, "/readyz") as server:
                    took.setdefault(backend, []).append(time.perf_counter() - began)
                    if number == 0:
                        asyncio.run(searched(server, "cold", 50))
                        memory[backend] = memory_mib(server.process.pid)
    return {name: statistics.median(times) for name, times in took.items()}, memory


async def searched(system: System, collection: str, count: int) -> None:
    """Answer queries, none twice."""
    connection = Connection(system.port)
    for number in range(count):
        body = {"query": f"w{number} and w{number + 50}", "limit": 10}
        await connection.ask("POST", f"/v1/collections/{collection}/search", body)
    connection.close()


def memory_mib(process: int) -> tuple[float, float]:
    """Resident memory of a process, and what of it is no file's; 0 where they cannot be read."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    sizes = dict(line.split(":", 1) for line in lines)
    return tuple(int(sizes[name].split()[0]) / 1024 for name in ("VmRSS", "RssAnon"))  # type: ignore[return-value]


def processor_s(process: int) -> float:
    """Processor seconds that a process has had; 0 where they cannot be read."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def show(figures: dict[str, Any], names: list[str], connections: list[int]) -> None:
    """The tables."""
    print(f"load {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores; ", end="")
    print(f"{figures['rounds']} whole rounds\n")
    if names:
        show_answers(figures, names, connections)
    for name, seconds in figures.get("cold", {}).items():
        print(f"cold start, {name}: {seconds:.1f} s ({seconds / figures['cold']['bare import']:.2f} ×)")
    for name, (resident, own) in figures.get("memory", {}).items():
        print(f"memory, {name}: {resident:.0f} MiB resident, {own:.0f} of them its own")


def show_answers(figures: dict[str, Any], names: list[str], connections: list[int]) -> None:
    titles = "documents/s | per CPU s | connections | queries/s | p50 ms | p99 ms | server CPU ms | refused"
    print(f"| system | {titles} |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in names:
        for count in connections:
            one = figures["asked"].get(name, {}).get(count)
            if one is None:  # there was no time for it
                continue
            rate = figures["indexed"][name]
            indexed = "– | –" if rate is None else " | ".join(f"{value:.0f}" for value in rate.values())
            print(
                f"| {name} | {indexed} | {count} | {one['queries_per_s']:.0f} | "
                f"{one['p50_ms']:.1f} | {one['p99_ms']:.1f} | {one['cpu_ms']:.2f} | {one['refused']:.0f} |"
            )
    print()
    for name, one in figures["work"].items():
        print(f"{name}: {one['cpu_ms']:.2f} ms CPU of a query whose embedding is kept")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Queries on a crowded machine: p95 of the wall time beside busy neighbours, over that on an idle machine.

    python scripts/bench/crowded.py            two busy processes a core
    python scripts/bench/crowded.py --crowd 4
    python scripts/bench/crowded.py --threads 1

One query after the other, in process, every system in a process of its own with the threads that it sets by
itself; neighbours compute without pause, so that a core is shared by as many and one. Whoever waits for work
by spinning, or has more threads than cores, loses more than that share.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

SYSTEMS = ("dsearch torch", "dsearch openvino", "sentence-transformers")
BUSY = "while True: sum(range(100_000))"

Search = Callable[[str], object]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--crowd", type=int, default=2, help="busy processes a core (default: %(default)s)")
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--threads", type=int, help="of dsearch; by itself as many as there are cores")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options)))
        return
    print("| | idle p50, ms | idle p95 | crowded p50 | crowded p95 | p95 crowded / idle |")
    print("|---|---|---|---|---|---|")
    for system in options.systems:
        done = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--one", system], capture_output=True, text=True
        )
        if done.returncode:
            print(f"| {system} | {done.stderr.strip().splitlines()[-1][:80]} | | | | |")
            continue
        idle, crowded = json.loads(done.stdout.splitlines()[-1])
        cells = " | ".join(f"{one:.1f}" for one in (*idle, *crowded))
        print(f"| {system} | {cells} | {crowded[1] / idle[1]:.1f} |", flush=True)


def measured(options: argparse.Namespace) -> tuple[tuple[float, float], tuple[float, float]]:
    """(p50, p95) in milliseconds, idle and crowded."""
    from dsearch.corpus import python_documents

    texts = [one.content for one in python_documents()[: options.documents]]
    with tempfile.TemporaryDirectory() as folder:
        if options.one == SYSTEMS[-1]:
            search = of_sentence_transformers(texts)
        else:
            search = of_dsearch(options.one, texts, folder, options.threads)
        queries = [" ".join(text.split()[:8]) for text in texts]
        for query in queries[:20]:
            search(query)
        idle = timed(search, queries, options.queries)
        with neighbours(options.crowd * (os.cpu_count() or 1)):
            return idle, timed(search, queries, options.queries)


def timed(search: Search, queries: list[str], count: int) -> tuple[float, float]:
    took = []
    for number in range(count):
        query = f"{queries[number % len(queries)]} {number}"  # none twice: embeddings of queries are kept
        started = time.perf_counter()
        search(query)
        took.append(1000 * (time.perf_counter() - started))
    took.sort()
    return took[len(took) // 2], took[int(0.95 * len(took))]


@contextmanager
def neighbours(count: int):
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    time.sleep(1)  # until they are
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


def of_dsearch(system: str, texts: list[str], folder: str, threads: int | None) -> Search:
    from dsearch.threads import set_threads

    set_threads(threads)
    from dsearch.encoder import DEFAULT_ENCODER, load_encoder
    from dsearch.engine import PassageOptions, SearchEngine
    from dsearch.types import Document

    encoder = load_encoder(DEFAULT_ENCODER, backend=system.split()[1], cache=Path(folder) / "exported")
    collection = SearchEngine(folder, encoder=lambda: encoder).create("c", passages=PassageOptions(none=True))
    collection.ingest(Document(str(number), text) for number, text in enumerate(texts))
    return lambda query: collection.search(query, mode="dense")


def of_sentence_transformers(texts: list[str]) -> Search:
    import faiss
    from sentence_transformers import SentenceTransformer

    from dsearch.encoder import DEFAULT_ENCODER
    from dsearch.encoder.weights import find_weights

    encoder = SentenceTransformer(str(find_weights(DEFAULT_ENCODER).folder), device="cpu")
    index = faiss.IndexFlatIP(384)
    index.add(encoder.encode(texts, normalize_embeddings=True))
    return lambda query: index.search(encoder.encode([query], normalize_embeddings=True), 10)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Queries a second and latency of a cluster on this machine, by number of shards; and what Ray Serve adds.

    python scripts/bench/cluster.py                          20,000 documents, 1, 2 and 4 shards
    python scripts/bench/cluster.py --documents 200000 --http
    python scripts/bench/cluster.py --shards --bulk 1 2      encoding alone, with the encoder's weights

Random unit embeddings are given, so nothing is encoded. Hybrid queries, four at a time, go through the merge
of this process to shard actors; `CPU a shard` is what one of them spends on a query, `for nothing` what it
would on a call that does nothing, and `alone` what a shard spends on the same in this process, one after the
other: no messages, and nobody else who reads keys from the same memory. With --http keyword queries go
through Ray Serve as well, one at a time, beside its own answer of a route that does nothing. All shards share
the cores of this machine: more of them make a query cheaper for each, not the machine faster. With --bulk
entries of Python's documentation are encoded by so many workers, each with one thread; the time includes that
of starting them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from dsearch.threads import set_threads

DIMENSION = 384
WORDS = 5_000
ALONE = 100  # queries
BULK = 4_000  # documents


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--shards", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--queries", type=int, default=400)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--bulk", type=int, nargs="+", default=[], help="numbers of workers")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    set_threads(1)

    from dsearch.cluster.connection import connect

    ray = connect(None, num_cpus=16)
    try:
        with tempfile.TemporaryDirectory() as folder:
            figures = _measure(Path(folder), options, ray) if options.shards else []
            figures += [_bulk(Path(folder) / f"bulk-{workers}", workers) for workers in options.bulk]
    finally:
        ray.shutdown()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def _measure(folder: Path, options: argparse.Namespace, ray: Any) -> list[dict[str, Any]]:
    import numpy as np
    import torch

    from dsearch.cluster.connection import NAMESPACE
    from dsearch.cluster.coordinator import LiveRelease, coordinator
    from dsearch.cluster.release import split
    from dsearch.cluster.search.search import EncodedQueries, ShardedSearch
    from dsearch.cluster.shards.remote import RayShards
    from dsearch.cluster.shards.shard import LocalShards
    from dsearch.engine import SearchEngine
    from dsearch.search_options import SearchOptions
    from dsearch.types import Document

    random = np.random.default_rng(0)
    engine = SearchEngine(folder / "home")
    made = engine.create("bench", dimension=DIMENSION)
    for start in range(0, options.documents, 5_000):
        count = min(5_000, options.documents - start)
        vectors = random.standard_normal((count, DIMENSION)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        words = random.zipf(1.3, (count, 30)) % WORDS
        texts = [" ".join(f"w{word}" for word in line) for line in words]
        documents = [Document(f"d{start + i}", text) for i, text in enumerate(texts)]
        made.upsert(documents, embeddings=vectors)
    made.refresh()
    asked = [f"w{a} w{b} w{c}" for a, b, c in random.zipf(1.3, (options.queries, 3)) % WORDS]
    states = torch.nn.functional.normalize(torch.randn(len(asked), DIMENSION), dim=-1)
    by_text = dict(zip(asked, states, strict=True))
    chosen = SearchOptions(limit=10, coverage=False)

    def encoded(texts: Sequence[str], mode: str, model: str, tokens: bool) -> EncodedQueries:
        return EncodedQueries(torch.stack([by_text[text] for text in texts]), None)

    known = coordinator(start=True)
    figures: list[dict[str, Any]] = []
    print("| shards | queries/s | p50 | p99 | CPU a shard | for nothing | alone | HTTP | beyond no-op |")
    print("|---|---|---|---|---|---|---|---|---|")
    for shards in options.shards:
        release = split(made.store, made.snapshot.generation, folder / f"release-{shards}", shards)
        published = known.publish.remote(
            str(folder / f"release-{shards}"), 1, str(folder / "cache"), 0.1, 0.1
        )
        live = LiveRelease(**ray.get(published))
        local = LocalShards(folder / f"release-{shards}")
        alone = _Alone(local)
        for query in asked[:ALONE]:
            ShardedSearch(release, alone, made.head, encoded).search([query], "v0", chosen)
        local.close()
        search = ShardedSearch(release, RayShards(live), made.head, encoded)
        actors = [ray.get_actor(names[0], namespace=NAMESPACE) for names in live.actors]
        ask = partial(search.search, model="v0", chosen=chosen)
        ask(asked[:1])
        before = _cpu_s(ray, actors)
        started = time.perf_counter()
        times = _ask(asked, options.at_once, lambda query, ask=ask: ask([query]))
        wall_s = time.perf_counter() - started
        cpu_s = _cpu_s(ray, actors) - before
        before = _cpu_s(ray, actors)
        _ask(asked, options.at_once, partial(_call_for_nothing, ray, actors))
        nothing_s = _cpu_s(ray, actors) - before
        figures.append(
            {
                "shards": shards,
                "queries_per_s": len(asked) / wall_s,
                "p50_ms": statistics.median(times),
                "p99_ms": statistics.quantiles(times, n=100)[98],
                "cpu_per_shard_ms": cpu_s / shards / len(asked) * 1000,
                "cpu_for_nothing_ms": nothing_s / shards / len(asked) * 1000,
                "cpu_alone_ms": alone.spent_s / shards / min(ALONE, len(asked)) * 1000,
            }
        )
        one = figures[-1]
        over_http = "| |"
        if options.http:
            one |= _over_http(folder, asked)
            over_http = f"{one['http_p50_ms']:.1f} ms | {one['http_beyond_noop_ms']:.1f} ms |"
        print(
            f"| {shards} | {one['queries_per_s']:.0f} | {one['p50_ms']:.1f} ms | {one['p99_ms']:.1f} ms | "
            f"{one['cpu_per_shard_ms']:.2f} ms | {one['cpu_for_nothing_ms']:.2f} ms | "
            f"{one['cpu_alone_ms']:.2f} ms | {over_http}",
            flush=True,
        )
    ray.get(known.withdraw.remote())
    engine.close()
    return figures


def _bulk(home: Path, workers: int) -> dict[str, float]:
    """Encoding by workers of the cluster."""
    from dsearch.cluster.bulk import encode_on_cluster
    from dsearch.corpus import python_documents
    from dsearch.encoder import DEFAULT_ENCODER
    from dsearch.engine import SearchEngine

    with SearchEngine(home) as engine:
        made = engine.create("bench")
        made.store.upsert(python_documents()[:BULK])
        described = {"encoder": DEFAULT_ENCODER, "device": "cpu", "backend": "torch"}
        started = time.perf_counter()
        count = encode_on_cluster(made.store, encoder=described, workers=workers, num_cpus=0.1)
        took_s = time.perf_counter() - started
    print(
        f"{workers} workers: {count} documents in {took_s:.0f} s, {count / took_s:.0f} documents/s",
        flush=True,
    )
    return {"workers": workers, "documents": count, "documents_per_s": count / took_s}


class _Alone:
    """Shards of this process, and the CPU seconds that they have taken."""

    def __init__(self, shards: Any):
        self._shards = shards
        self.spent_s = 0.0

    def ask(self, method: str, requests: Mapping[int, Any]) -> dict[int, Any]:
        started = time.process_time()
        answers = self._shards.ask(method, requests)
        self.spent_s += time.process_time() - started
        return answers


def _cpu_s(ray: Any, actors: list[Any]) -> float:
    return sum(ray.get([actor.cpu_s.remote() for actor in actors]))


def _call_for_nothing(ray: Any, actors: list[Any], _: str) -> None:
    ray.get([actor.ready.remote() for actor in actors])


def _ask(asked: list[str], at_once: int, search: Any) -> list[float]:
    """Milliseconds of each query, so many of them at a time."""
    times: list[float] = []
    left = iter(asked)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                query = next(left, None)
            if query is None:
                return
            started = time.perf_counter()
            search(query)
            times.append((time.perf_counter() - started) * 1000)

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def _over_http(folder: Path, asked: list[str]) -> dict[str, float]:
    import httpx2

    from dsearch.cluster.ingress import IngressSettings, deploy, undeploy
    from dsearch.encoder import DEFAULT_ENCODER

    settings = IngressSettings(str(folder / "home"), DEFAULT_ENCODER, query_timeout_s=30.0)
    deploy(settings, host="127.0.0.1", port=8799, num_cpus=0.1)
    with httpx2.Client(base_url="http://127.0.0.1:8799", timeout=60) as client:

        def search(query: str) -> None:
            answer = client.post(
                "/v1/collections/bench/search", json={"query": query, "mode": "keyword", "limit": 10}
            )
            assert answer.status_code == 200, answer.text

        for query in asked[:20]:
            search(query)
        nothing = _ask(asked[:200], 1, lambda _: client.get("/healthz"))
        found = _ask(asked[:200], 1, search)
    undeploy()
    noop, p50 = statistics.median(nothing), statistics.median(found)
    return {"http_p50_ms": p50, "http_noop_p50_ms": noop, "http_beyond_noop_ms": p50 - noop}


if __name__ == "__main__":
    main()

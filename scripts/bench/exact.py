#!/usr/bin/env python3
"""Exact search by batch size: a Flat index, FAISS alone on the same keys, and the bare matrix product.

    python scripts/bench/exact.py                          200,000 × 384, one thread
    python scripts/bench/exact.py --documents 1000000

CPU milliseconds for a whole batch, medians of rounds in which the three take turns. `equal` is the share of
positions at which both searches found the same document. The last column is what reading all keys once from
memory would cost at the rate of a copy: below it no exact search of float32 keys can come. Then one query
over keys of each of `--kinds`, beside reading those once: half-precision keys are half of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from dsearch.threads import set_threads


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64, 256])
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="*", default=["Flat", "SQfp16", "SQbf16"])
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    set_threads(options.threads)

    import numpy as np

    from dsearch.index import DenseIndex

    rng = np.random.default_rng(0)
    keys = np.empty((options.documents, options.dim), np.float32)
    for block in np.array_split(keys, max(1, options.documents // 50_000)):
        block[:] = rng.standard_normal(block.shape, dtype=np.float32)
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    index = DenseIndex.build(keys)
    flat = index._stored  # FAISS' own, over the same memory
    target = np.zeros_like(keys[:50_000])
    copied_ms = min(cpu_ms(lambda: np.copyto(target, keys[: len(target)])) for _ in range(5))
    # A copy reads and writes; a search only reads.
    limit_ms = copied_ms / 2 * options.documents / len(target)

    def product(queries: np.ndarray) -> None:
        for start in range(0, len(keys), 8192):
            queries @ keys[start : start + 8192].T

    print(
        f"{options.documents:,} keys of {options.dim}, k = {options.k}, {options.threads} thread(s); CPU ms\n"
    )
    print("| queries | dsearch Flat | FAISS Flat | times as fast | bare product | equal | keys read once |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    rows = []
    for batch in options.batches:
        queries = rng.standard_normal((batch, options.dim), dtype=np.float32)
        searches: list[Callable[[], object]] = [
            lambda queries=queries: index.search(queries, options.k),
            lambda queries=queries: flat.search(queries, options.k),
            lambda queries=queries: product(queries),
        ]
        equal = float((index.search(queries, options.k)[1] == flat.search(queries, options.k)[1]).mean())
        rounds = [[cpu_ms(search) for search in searches] for _ in range(options.rounds)]
        ours, theirs, bare = (statistics.median(column) for column in zip(*rounds, strict=True))
        rows.append(
            {"queries": batch, "dsearch_ms": ours, "faiss_ms": theirs, "product_ms": bare, "equal": equal}
        )
        print(
            f"| {batch} | {ours:.1f} | {theirs:.1f} | {theirs / ours:.2f} | {bare:.1f} | {equal:.4f} "
            f"| {limit_ms:.1f} |",
            flush=True,
        )
    kinds = _one_query(keys, index, options, limit_ms)
    if options.json:
        facts = {
            "documents": options.documents,
            "dim": options.dim,
            "k": options.k,
            "threads": options.threads,
        }
        options.json.write_text(
            json.dumps({"environment": facts, "rows": rows, "one_query": kinds}, indent=2) + "\n"
        )


def _one_query(keys: Any, flat: Any, options: argparse.Namespace, limit_ms: float) -> list[dict[str, Any]]:
    """One query over the same keys as each kind keeps them."""
    import numpy as np

    from dsearch.index import DENSE_KINDS, DenseIndex

    queries = np.random.default_rng(1).standard_normal((32, options.dim), dtype=np.float32)
    print("\n| kind | one query | keys read once | times that | of the exact first k |")
    print("|---|---:|---:|---:|---:|")
    rows: list[dict[str, Any]] = []
    exact = flat.search(queries, options.k)[1]
    for kind in options.kinds:
        index = flat if kind == "Flat" else DenseIndex.build(keys, kind)
        times = [cpu_ms(partial(index.search, query[None], options.k)) for query in queries]
        found = index.search(queries, options.k)[1]
        share = DENSE_KINDS[kind].bytes_per_key(options.dim) / (4 * options.dim)
        row = {
            "kind": kind,
            "dsearch_ms": statistics.median(times),
            "read_once_ms": limit_ms * share,
            "recall": float(np.mean([np.isin(a, b).mean() for a, b in zip(found, exact, strict=True)])),
        }
        rows.append(row)
        print(
            f"| {kind} | {row['dsearch_ms']:.1f} | {row['read_once_ms']:.1f} "
            f"| {row['dsearch_ms'] / row['read_once_ms']:.2f} | {row['recall']:.4f} |",
            flush=True,
        )
    return rows


def cpu_ms(run: Callable[[], object]) -> float:
    """CPU milliseconds of one call."""
    start = time.process_time()
    run()
    return (time.process_time() - start) * 1e3


if __name__ == "__main__":
    main()

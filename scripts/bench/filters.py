"""Filtered recall@10 against exact search, and queries/s, of each kind of index and each way to search it.

    python scripts/bench/filters.py                       50,000 clustered keys of 384 numbers
    python scripts/bench/filters.py --keys embeddings.npy any float32 [documents, dim]

Filters let a share of the documents pass: any ("random"), or whole regions of the embedding space ("region":
the documents nearest to a few random ones, as a filter on language, source or topic does). Ways: "walk" asks
the index with a selector, its parameters raised as `DenseIndex` does; "compare" looks at every
key that passes; "served" is what a search does: the index proposes 100, the stored embeddings re-score them.
Queries run one at a time; each kind was tuned to a recall@10 of .99 without a filter.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dsearch.threads import set_threads

SHARES = (0.5, 0.2, 0.05, 0.005)
KINDS = ("Flat", "SQ8", "HNSW", "IVF", "IVFPQ")
PROPOSED = 100


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=Path, help="a .npy file of embeddings")
    parser.add_argument("--documents", type=int, default=50_000, help="generated keys (default: %(default)s)")
    parser.add_argument("--dim", type=int, default=384, help="their length (default: %(default)s)")
    parser.add_argument(
        "--noise", type=float, default=0.9, help="spread of generated clusters (default: %(default)s)"
    )
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write everything here")
    arguments = parser.parse_args()
    set_threads(arguments.threads)
    from dsearch.index import build_tuned
    from dsearch.index.dense.tuning import sample_queries

    keys = np.load(arguments.keys) if arguments.keys else clustered(arguments)
    queries = sample_queries(keys, count=2 * arguments.queries)
    filters = [(kind, share, mask_of(keys, kind, share)) for kind in ("random", "region") for share in SHARES]
    truths = [exact(keys, queries[1::2], mask) for _, _, mask in filters]
    print(f"{len(keys):,} keys of {keys.shape[1]} numbers, {arguments.queries} queries\n")
    ways = "".join(f"  {way:>7}: recall  queries/s" for way in ("walk", "compare", "served"))
    print(f"kind   filter  share {ways}")
    rows = []
    for kind in arguments.kinds:
        index, _ = build_tuned(keys, kind, queries=queries[::2])
        for (name, share, mask), truth in zip(filters, truths, strict=True):
            row = {"kind": kind, "filter": name, "share": share}
            for way, (recall, per_s) in measure(index, keys, queries[1::2], ~mask, truth).items():
                row |= {f"{way}_recall": recall, f"{way}_per_s": per_s}
            rows.append(row)
            print(
                f"{kind:<6} {name:<7} {share:<6}"
                f"  {row['walk_recall']:13.4f} {row['walk_per_s']:10.0f}"
                f"  {row['compare_recall']:16.4f} {row['compare_per_s']:10.0f}"
                f"  {row['served_recall']:15.4f} {row['served_per_s']:10.0f}",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps({"documents": len(keys), "rows": rows}, indent=1), "utf-8")


def clustered(arguments: argparse.Namespace) -> np.ndarray:
    documents, dim = arguments.documents, arguments.dim
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((max(documents // 100, 1), dim)).astype(np.float32)
    keys = centres[rng.integers(0, len(centres), documents)]
    keys += arguments.noise * rng.standard_normal(keys.shape).astype(np.float32)
    return keys / np.linalg.norm(keys, axis=1, keepdims=True)


def mask_of(keys: np.ndarray, kind: str, share: float) -> np.ndarray:
    """Which documents pass."""
    rng = np.random.default_rng(1)
    if kind == "random":
        return rng.random(len(keys)) < share
    near = (keys @ keys[rng.integers(0, len(keys), 8)].T).max(axis=1)
    return near >= np.quantile(near, 1 - share)


def exact(keys: np.ndarray, queries: np.ndarray, mask: np.ndarray) -> np.ndarray:
    from dsearch.index.dense.tuning import exact_neighbours

    allowed = np.flatnonzero(mask)
    return allowed[exact_neighbours(keys[allowed], queries)]


def measure(
    index, keys: np.ndarray, queries: np.ndarray, exclude: np.ndarray, truth: np.ndarray
) -> dict[str, tuple[float, float]]:
    """Recall@10 and queries/s of each way."""
    from dsearch.index.dense import index as dense

    def served(query: np.ndarray) -> np.ndarray:
        found = index.search(query, PROPOSED, exclude)[1][0]
        found = found[found >= 0]
        return found[np.argsort(-(keys[found] @ query[0]), kind="stable")][:10]

    def plain(query: np.ndarray) -> np.ndarray:
        return index.search(query, truth.shape[1], exclude)[1][0]

    rules = (dense._READ_BELOW, dense._SCANNED_SHARE, dense._COMPARED_PER_STEP)
    results = {}
    try:
        dense._READ_BELOW, dense._SCANNED_SHARE, dense._COMPARED_PER_STEP = 0, 0.0, 0
        results["walk"] = timed(plain, queries, truth)
        dense._READ_BELOW, dense._SCANNED_SHARE = rules[0], 1.0
        results["compare"] = timed(plain, queries, truth)
    finally:
        dense._READ_BELOW, dense._SCANNED_SHARE, dense._COMPARED_PER_STEP = rules
    results["served"] = timed(served, queries, truth)
    return results


def timed(
    search: Callable[[np.ndarray], np.ndarray], queries: np.ndarray, truth: np.ndarray
) -> tuple[float, float]:
    search(queries[:1])
    started = time.perf_counter()
    found = [search(query[None]) for query in queries]
    per_s = len(queries) / (time.perf_counter() - started)
    hits = sum(len(np.intersect1d(mine, true)) for mine, true in zip(found, truth, strict=True))
    return hits / truth.size, per_s


if __name__ == "__main__":
    main()

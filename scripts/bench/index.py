"""Kinds of dense index side by side: recall@10, queries/s, bytes per document, build time; then with filters.

    python scripts/bench/index.py                                   50,000 clustered keys
    python scripts/bench/index.py --home index --collection scifact the live generation of a collection
    python scripts/bench/index.py --keys embeddings.npy             any float32 [documents, dim]

Each kind is tuned to --target on queries made of the keys (`dsearch.index.dense.tuning`), or on half of
the rows of --queries, float32 [queries, dim]; it is scored on other queries of the same sort. Filters let
a random share of the documents pass; the reference is exact search among these. Queries run one at a
time.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from dsearch.threads import set_threads

SHARES = (0.5, 0.05, 0.005)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, help="a home of collections; with --collection")
    parser.add_argument("--collection", help="a collection in --home")
    parser.add_argument("--keys", type=Path, help="a .npy file of embeddings")
    parser.add_argument("--queries", type=Path, help="a .npy file of real queries' embeddings")
    parser.add_argument("--documents", type=int, default=50_000, help="generated keys (default: %(default)s)")
    parser.add_argument(
        "--dim", type=int, default=384, help="length of a generated key (default: %(default)s)"
    )
    parser.add_argument("--kinds", nargs="*", help="kinds to compare (default: all, and auto)")
    parser.add_argument("--target", type=float, default=0.99, help="recall@10 (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write everything here")
    arguments = parser.parse_args()
    set_threads(arguments.threads)
    from dsearch.index import AUTO, DENSE_KINDS

    keys, name = load(arguments)
    tuning, held_out = queries_for(keys, arguments.queries)
    print(f"{name}: {len(keys):,} keys of {keys.shape[1]} numbers, target {arguments.target}\n")
    filtered = " ".join(f"recall@{share:<5g} ms" for share in SHARES)
    print(f"{'kind':<14}recall@10  queries/s  bytes/doc  build s  {filtered}   parameters")
    rows = []
    for kind in arguments.kinds or [*DENSE_KINDS, AUTO]:
        row = measure(kind, keys, tuning, held_out, arguments.target)
        rows.append(row)
        label = row["kind"] if kind != AUTO else f"auto: {row['kind']}"
        with_filters = " ".join(f"{f['recall_at_10']:.3f} {f['ms']:7.2f}" for f in row["filtered"])
        print(
            f"{label:<14}{row['recall_at_10']:9.4f}  {row['queries_per_s']:9.0f}  "
            f"{row['bytes_per_document']:9.0f}  {row['build_s']:7.1f}  {with_filters}   {row['parameters']}",
            flush=True,
        )
    if arguments.json:
        report = {"data": name, "documents": len(keys), "dim": keys.shape[1], "target": arguments.target}
        arguments.json.write_text(json.dumps({**report, "kinds": rows}, indent=1), "utf-8")


def load(arguments: argparse.Namespace) -> tuple[np.ndarray, str]:
    if arguments.keys:
        return np.load(arguments.keys, mmap_mode="r", allow_pickle=False), arguments.keys.name
    if arguments.collection:
        from dsearch.engine import SearchEngine

        with SearchEngine(arguments.home or Path("index"), readonly=True) as engine:
            generation = engine.collection(arguments.collection).snapshot.generation
            return np.asarray(generation.embeddings), arguments.collection
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((max(arguments.documents // 100, 1), arguments.dim)).astype(np.float32)
    keys = centres[rng.integers(0, len(centres), arguments.documents)]
    keys += 0.9 * rng.standard_normal(keys.shape).astype(np.float32)
    return keys / np.linalg.norm(keys, axis=1, keepdims=True), "clustered data"


def queries_for(keys: np.ndarray, path: Path | None) -> tuple[np.ndarray, np.ndarray]:
    from dsearch.index.dense.tuning import sample_queries

    if path is None:
        made = sample_queries(keys, count=800)
    else:
        made = np.load(path, allow_pickle=False)
        made = made[np.random.default_rng(0).permutation(len(made))[:800]].astype(np.float32)
    return made[::2], made[1::2]


def measure(kind: str, keys: np.ndarray, tuning: np.ndarray, queries: np.ndarray, target: float) -> dict:
    from dsearch.index import build_tuned
    from dsearch.index.dense.tuning import exact_neighbours, queries_per_s, recall

    started = time.perf_counter()
    index, measured = build_tuned(keys, kind, queries=tuning, target=target)
    build_s = time.perf_counter() - started
    assert measured is not None
    filtered = []
    for share in SHARES:
        exclude = np.random.default_rng(1).random(len(keys)) >= share
        allowed = np.flatnonzero(~exclude)
        truth = allowed[exact_neighbours(keys[allowed], queries)]
        asked = queries[:50]
        before = time.perf_counter()
        for query in asked:
            index.search(query[None], 10, exclude)
        ms = 1000 * (time.perf_counter() - before) / len(asked)
        filtered.append({"share": share, "recall_at_10": recall(index, queries, truth, exclude), "ms": ms})
    return {
        "kind": index.kind,
        "recall_at_10": recall(index, queries, exact_neighbours(keys, queries)),
        "queries_per_s": queries_per_s(index, queries),
        "bytes_per_document": measured.bytes_per_document,
        "build_s": build_s,
        "parameters": index.parameters,
        "filtered": filtered,
    }


if __name__ == "__main__":
    main()

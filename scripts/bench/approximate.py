#!/usr/bin/env python3
"""Approximate search beside hnswlib: queries a CPU second at a recall, bytes a vector, CPU seconds to build.

    python scripts/bench/approximate.py                      dsearch's kinds over 100,000 clustered keys
    python scripts/bench/approximate.py --peers PYTHON       beside hnswlib, from another environment
    python scripts/bench/approximate.py --keys KEYS.npy --queries QUERIES.npy

One thread, every system in a process of its own, rounds by turns, medians. Each takes the cheapest
parameters that reach --recall on half of the queries; asked are the others, all in one call. `build` is
making the index, `tune` finding its parameters. PYTHON has: pip install numpy hnswlib
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from by_turns import ONE_THREAD, by_turns, medians

OURS = ("IVFPQ", "HNSW", "IVF", "SQ8")
THEIRS = "hnswlib"
LINKS, BREADTH = 16, 200  # hnswlib's own example values of M and ef_construction
TEN = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--keys", type=Path, help="a .npy file of embeddings instead of clustered ones")
    parser.add_argument("--queries", type=Path, help="a .npy file of queries' embeddings")
    parser.add_argument("--recall", type=float, default=0.95, help="recall@10 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", nargs="+", choices=(*OURS, THEIRS), default=[*OURS, THEIRS])
    parser.add_argument("--peers", default=sys.executable, help="the Python of an environment with hnswlib")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one system in one round")
    parser.add_argument("--json", type=Path, help="write the figures here, again after every round")
    parser.add_argument("--one", nargs=3, metavar=("SYSTEM", "FOLDER", "RECALL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        system, folder, recall = options.one
        print(json.dumps(measured(system, Path(folder), float(recall))))
        return
    print("| | recall@10 | queries / CPU s | bytes / vector | build, CPU s | tune, CPU s | parameters |")
    print("|---|---|---|---|---|---|---|")
    for name, one in compared(options).items():
        if "problem" in one:
            print(f"| {name} | {one['problem']} | | | | | |")
            continue
        print(
            f"| {name} | {one['recall']:.3f} | {one['queries_per_s']:,.0f} | {one['bytes']:,.0f} "
            f"| {one['build_s']:.1f} | {one['tune_s']:.1f} | {one['parameters']} |"
        )


def compared(options: argparse.Namespace) -> dict[str, dict]:
    figures: dict[str, dict] = {}

    def keep(runs: dict[str, list[dict]], problems: dict[str, str]) -> None:
        figures.update({name: {"problem": told} for name, told in problems.items() if name not in runs})
        for name, each in runs.items():
            figures[name] = each[0] | medians(each, ("recall", "queries_per_s", "build_s", "tune_s"))
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1))

    with tempfile.TemporaryDirectory() as folder:
        make_data(options, Path(folder))
        commands = {
            system: [
                options.peers if system == THEIRS else sys.executable,
                *(__file__, "--one", system, folder, str(options.recall)),
            ]
            for system in options.systems
        }
        by_turns(commands, options.rounds, options.limit, ONE_THREAD, keep)
    return figures


def make_data(options: argparse.Namespace, folder: Path) -> None:
    """Keys, two sets of queries, and the true neighbours of both."""
    from dsearch.index.dense.tuning import exact_neighbours, sample_queries
    from dsearch.threads import set_threads

    set_threads(1)
    draw = np.random.default_rng(0)
    if options.keys:
        keys = np.load(options.keys, allow_pickle=False).astype(np.float32)
    else:
        centres = draw.standard_normal((max(options.documents // 100, 1), options.dim), np.float32)
        keys = centres[draw.integers(0, len(centres), options.documents)]
        keys += 0.9 * draw.standard_normal(keys.shape, np.float32)
        keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    if options.queries:
        queries = np.load(options.queries, allow_pickle=False).astype(np.float32)
        queries = queries[draw.permutation(len(queries))[:2000]]
    else:
        queries = sample_queries(keys, count=2000)
    np.save(folder / "keys.npy", keys)
    for name, half in (("tuning", queries[::2]), ("asked", queries[1::2])):
        np.save(folder / f"{name}.npy", half)
        np.save(folder / f"{name}-true.npy", exact_neighbours(keys, half))


def measured(system: str, folder: Path, recall: float) -> dict[str, object]:
    """Figures of one system in this process."""
    data = {path.stem: np.load(path, allow_pickle=False) for path in folder.glob("*.npy")}
    if system == THEIRS:
        one = hnswlib_index(data["keys"], data["tuning"], data["tuning-true"], recall)
    else:
        one = dsearch_index(system, data["keys"], data["tuning"], recall)
    search = one.pop("search")
    found = search(data["asked"])
    took = []
    for _ in range(5):
        started = time.process_time()
        search(data["asked"])
        took.append(time.process_time() - started)
    return {
        **one,
        "recall": agreement(found, data["asked-true"]),
        "queries_per_s": len(found) / statistics.median(took),
    }


def agreement(found: np.ndarray, truth: np.ndarray) -> float:
    return float((found[:, :, None] == truth[:, None, :]).any(2).mean())


def dsearch_index(kind: str, keys: np.ndarray, tuning: np.ndarray, recall: float) -> dict:
    from dsearch.threads import set_threads

    set_threads(1)
    from dsearch.index import DenseIndex
    from dsearch.index.dense.tuning import tuned

    started = time.process_time()
    index = DenseIndex.build(keys, kind)
    built = time.process_time()
    index, _ = tuned(index, keys, queries=tuning, target=recall)
    return {
        "build_s": built - started,
        "tune_s": time.process_time() - built,
        "bytes": index.stored_bytes() / len(index),
        "parameters": ", ".join(f"{name} {value}" for name, value in index.parameters.items()),
        "search": lambda queries: index.search(queries, TEN)[1],
    }


def hnswlib_index(keys: np.ndarray, tuning: np.ndarray, truth: np.ndarray, recall: float) -> dict:
    import hnswlib  # type: ignore[import-not-found]

    started = time.process_time()
    index = hnswlib.Index(space="ip", dim=keys.shape[1])
    index.init_index(len(keys), M=LINKS, ef_construction=BREADTH, random_seed=0)
    index.set_num_threads(1)
    index.add_items(keys)
    built = time.process_time()
    for breadth in (10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 448, 640):
        index.set_ef(breadth)
        if agreement(index.knn_query(tuning, TEN)[0].astype(np.int64), truth) >= recall:
            break
    tuned = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        index.save_index(f"{folder}/index")
        size = Path(folder, "index").stat().st_size
    return {
        "build_s": built - started,
        "tune_s": tuned - built,
        "bytes": size / len(keys),
        "parameters": f"ef {breadth}",
        "search": lambda queries: index.knn_query(queries, TEN)[0].astype(np.int64),
    }


if __name__ == "__main__":
    main()

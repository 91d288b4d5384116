"""How long a large collection takes to open, and what documents newer than the index cost a search.

    python scripts/bench_open.py                        # a million documents: minutes, and some 6 GB of disk
    python scripts/bench_open.py --documents 20000

Random unit embeddings are given, so nothing is encoded. Opening is measured in a new process each time: the
store alone, the index, the first search, the first filtered search, with the process' resident memory. Once
as the last writer left it, when large files are verified in the background (how long that takes is told);
and once as after a kill, when every file's digest is verified before it is read. Then 5 % more documents
are written beside the index, and the same dense and keyword searches are timed with and without them
(medians of CPU time, so that other work on the machine counts little; the ratio is what counts).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dsearch.threads import set_threads

set_threads()

import numpy as np  # noqa: E402
import torch  # noqa: E402

from dsearch.engine import SearchEngine  # noqa: E402
from dsearch.engine.clean_close import FILE_NAME as CLEAN_CLOSE  # noqa: E402
from dsearch.types import Document  # noqa: E402

NAME = "large"
AT_A_TIME = 5_000
QUERIES = 20
WORDS = 20_000
OPENING = """
import json, resource, sys, time
started = time.perf_counter()
import torch
from dsearch.engine import SearchEngine
imported = time.perf_counter()
with SearchEngine(sys.argv[1], readonly=True) as engine:
    collection = engine.collection("large")
    opened = time.perf_counter()
    collection.snapshot
    loaded = time.perf_counter()
    query = torch.ones(1, int(sys.argv[2])) / int(sys.argv[2]) ** 0.5
    collection.attend(query, mode="dense")
    answered = time.perf_counter()
    collection.attend(query, mode="dense", filter={"year": {"gte": 2000}, "tags": {"in": ["t1", "t2"]}})
    filtered = time.perf_counter()
    while collection.verification["state"] == "running":
        time.sleep(0.01)
    proven = time.perf_counter()
print(json.dumps({
    "imports_s": imported - started, "store_s": opened - imported, "index_s": loaded - opened,
    "first_search_s": answered - loaded, "first_filtered_s": filtered - answered,
    "verified_after_s": proven - loaded,
    "resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to make the home (default: a temporary one)")
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        for name, value in measured(home, arguments.documents, arguments.dim, arguments.rounds).items():
            print(f"{name:<52} {value:,.3f}", flush=True)
    finally:
        shutil.rmtree(home)


def measured(home: Path, documents: int, dim: int, rounds: int) -> dict[str, float]:
    generator = np.random.default_rng(0)
    figures: dict[str, float] = {}
    with SearchEngine(home) as engine:
        collection = engine.create(NAME, dimension=dim)
        started = time.perf_counter()
        # Straight into the store: a collection would keep every row searchable between the batches.
        for first in range(0, documents, AT_A_TIME):
            count = min(AT_A_TIME, documents - first)
            collection.store.upsert(texts(generator, first, count), unit(generator, count, dim))
        figures["written, documents/s"] = documents / (time.perf_counter() - started)
        started = time.perf_counter()
        collection.refresh()
        figures["generation built, s"] = time.perf_counter() - started
    for closed in ("cleanly", "by a kill"):
        if closed == "by a kill":
            (home / NAME / CLEAN_CLOSE).unlink()
        openings = [opening(home, dim) for _ in range(rounds)]
        for name in openings[0]:
            figures[f"closed {closed}, opened: {name}"] = statistics.median(one[name] for one in openings)
    with SearchEngine(home) as engine:
        collection = engine.collection(NAME)
        vectors = torch.as_tensor(unit(generator, QUERIES, dim))
        before = searches(collection, vectors)
        more = documents // 20
        for first in range(0, more, AT_A_TIME):
            count = min(AT_A_TIME, more - first)
            collection.upsert(texts(generator, documents + first, count), unit(generator, count, dim))
        after = searches(collection, vectors)
        for mode in before:
            figures[f"{mode} search, CPU ms"] = before[mode]
            figures[f"{mode} search with 5 % newer, ratio"] = after[mode] / before[mode]
    return figures


def opening(home: Path, dim: int) -> dict[str, float]:
    run = subprocess.run(
        [sys.executable, "-c", OPENING, str(home), str(dim)], check=True, capture_output=True, text=True
    )
    return json.loads(run.stdout)


def searches(collection, vectors: torch.Tensor) -> dict[str, float]:
    took: dict[str, list[float]] = {"dense": [], "keyword": []}
    for number, vector in enumerate(vectors):
        for mode in took:
            asked = vector[None] if mode == "dense" else [f"w{number} w{number + 50} w{number + 500}"]
            started = time.process_time()
            collection.attend(asked, mode=mode)
            took[mode].append((time.process_time() - started) * 1000)
    return {mode: statistics.median(times[2:]) for mode, times in took.items()}


def texts(generator: np.random.Generator, first: int, count: int) -> list[Document]:
    drawn = (generator.pareto(1.0, (count, 12)) * 10).astype(np.int64) % WORDS
    return [
        Document(f"d{row}", " ".join(f"w{word}" for word in words), metadata=metadata_of(row))
        for row, words in enumerate(drawn.tolist(), start=first)
    ]


def metadata_of(row: int) -> dict[str, object]:
    return {
        "year": 1950 + row % 75,
        "lang": ("en", "de", "fr")[row % 3],
        "tags": [f"t{row % 200}", f"t{row % 7}"],
    }


def unit(generator: np.random.Generator, count: int, dim: int) -> np.ndarray:
    drawn = generator.normal(size=(count, dim)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


if __name__ == "__main__":
    main()

"""What a large collection costs: building, opening, memory, searching, newer documents beside it, training.

    python scripts/bench/large.py                        # a million documents: minutes, and some 6 GB of disk
    python scripts/bench/large.py --kind auto            # keys as a million documents get them by themselves
    python scripts/bench/large.py --documents 20000

Unit embeddings around random centres are given, so nothing is encoded. Opening is measured in a new process
each time: the store alone, the index, the first search, the first filtered search, the median of fifty, and
memory: what is resident, and what of it is the process' own rather than pages of mapped files (libraries not
counted). Every file's digest is verified before it is read. Then one epoch of a head over the whole corpus,
for 256 queries. At last 5 % more documents are written beside the index, and the same dense and keyword
searches are timed with and without them, by turns (medians of CPU time, so that other work on the machine
counts little; the ratio is what counts).
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
from collections.abc import Iterator
from pathlib import Path

from dsearch.threads import set_threads

set_threads()

import numpy as np
import torch

from dsearch.engine import SearchEngine, SearchLayer
from dsearch.training import Examples, TrainingOptions, train_head
from dsearch.types import Document, Mode

NAME = "large"
MODES: tuple[Mode, ...] = ("dense", "keyword")
AT_A_TIME = 5_000
QUERIES = 20
TRAINING_QUERIES = 256
WORDS = 20_000
OPENING = """
import json, statistics, sys, time
def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))
started = time.perf_counter()
import torch
from dsearch.engine import SearchEngine
imported = time.perf_counter()
before = memory("RssAnon")
with SearchEngine(sys.argv[1], readonly=True) as engine:
    collection = engine.collection("large")
    opened = time.perf_counter()
    collection.snapshot
    loaded = time.perf_counter()
    documents = len(collection.snapshot.generation)
    generator = torch.Generator().manual_seed(0)
    states = torch.nn.functional.normalize(torch.randn(51, 1, int(sys.argv[2]), generator=generator), dim=-1)
    query = states[0]
    collection.attend(query, mode="dense")
    answered = time.perf_counter()
    collection.attend(query, mode="dense", filter={"year": {"gte": 2000}, "tags": {"in": ["t1", "t2"]}})
    filtered = time.perf_counter()
    took = []
    for state in states[1:]:
        since = time.perf_counter()
        collection.attend(state, mode="dense")
        took.append(time.perf_counter() - since)
    own, resident = memory("RssAnon") - before, memory("VmRSS")
print(json.dumps({
    "imports_s": imported - started, "store_s": opened - imported, "index_s": loaded - opened,
    "first_search_s": answered - loaded, "first_filtered_s": filtered - answered,
    "search_p50_ms": statistics.median(took) * 1000,
    "resident_mib": resident / 2**20, "own_bytes_per_document": own / documents,
}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--kind", default="Flat", help="how keys are kept (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to make the home (default: a temporary one)")
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        for stage in (built, opened, trained, grown):
            for name, value in stage(home, arguments).items():
                print(f"{name:<56} {value:,.3f}", flush=True)
    finally:
        shutil.rmtree(home)


def built(home: Path, arguments: argparse.Namespace) -> dict[str, float]:
    with SearchEngine(home) as engine:
        collection = engine.create(NAME, dimension=arguments.dim)
        started = time.perf_counter()
        # Straight into the store: a collection would keep every row searchable between the batches.
        for documents, embeddings in batches(arguments, 0, arguments.documents):
            collection.store.upsert(documents, embeddings)
        written_s = time.perf_counter() - started
        started = time.perf_counter()
        collection.refresh(kind=arguments.kind)
        return {
            "written, documents/s": arguments.documents / written_s,
            "generation built, s": time.perf_counter() - started,
        }


def opened(home: Path, arguments: argparse.Namespace) -> dict[str, float]:
    openings = [opening(home, arguments.dim) for _ in range(arguments.rounds)]
    return {f"opened: {name}": statistics.median(one[name] for one in openings) for name in openings[0]}


def trained(home: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """An epoch of queries near documents, each with that document as its answer."""
    generator = np.random.default_rng(2)
    with SearchEngine(home) as engine:
        snapshot = engine.collection(NAME).snapshot
        answers = np.sort(generator.choice(arguments.documents, TRAINING_QUERIES, replace=False))
        noise = generator.standard_normal((TRAINING_QUERIES, arguments.dim), np.float32)
        states = unit(snapshot.generation.embeddings[answers] + 0.5 * noise / arguments.dim**0.5)
        grades = np.ones(1, np.float32)
        relevant = [(answers[number : number + 1], grades) for number in range(TRAINING_QUERIES)]
        texts = [f"w{number} w{number + 50}" for number in range(TRAINING_QUERIES)]
        examples = Examples(snapshot, texts, states, relevant, {}, "")
        took: list[float] = []
        for epochs in (1, 3):  # the further two alone: what comes before the first does not count
            started = time.process_time()
            train_head(examples, TrainingOptions(epochs=epochs, tune=False))
            took.append(time.process_time() - started)
        return {f"an epoch of {TRAINING_QUERIES} queries, CPU s": (took[1] - took[0]) / 2}


def grown(home: Path, arguments: argparse.Namespace) -> dict[str, float]:
    figures: dict[str, float] = {}
    with SearchEngine(home) as engine:
        collection = engine.collection(NAME)
        asked = torch.as_tensor(embeddings_of(np.random.default_rng(3), QUERIES, arguments))
        before, head = collection.snapshot, collection.head(collection.live_model)
        for documents, embeddings in batches(arguments, arguments.documents, arguments.documents // 20):
            collection.upsert(documents, embeddings)
        states = {"before": before, "after": collection.snapshot}
        for mode in MODES:
            layers = {name: SearchLayer(state, head, mode=mode) for name, state in states.items()}
            took = searches(layers, asked)
            figures[f"{mode} search, CPU ms"] = statistics.median(took["before"])
            ratios = [after / before for before, after in zip(took["before"], took["after"], strict=True)]
            figures[f"{mode} search with 5 % newer, ratio"] = statistics.median(ratios)
    return figures


def opening(home: Path, dim: int) -> dict[str, float]:
    run = subprocess.run(
        [sys.executable, "-c", OPENING, str(home), str(dim)], check=True, capture_output=True, text=True
    )
    return json.loads(run.stdout)


def searches(layers: dict[str, SearchLayer], vectors: torch.Tensor) -> dict[str, list[float]]:
    """CPU ms of each query by each layer, by turns; the first two warm up."""
    took: dict[str, list[float]] = {name: [] for name in layers}
    with torch.inference_mode():
        for number, vector in enumerate(vectors):
            for name, layer in layers.items():
                started = time.process_time()
                layer(vector[None], [f"w{number} w{number + 50} w{number + 500}"])
                took[name].append((time.process_time() - started) * 1000)
    return {name: times[2:] for name, times in took.items()}


def batches(
    arguments: argparse.Namespace, first: int, count: int
) -> Iterator[tuple[list[Document], np.ndarray]]:
    generator = np.random.default_rng(first)
    for start in range(first, first + count, AT_A_TIME):
        size = min(AT_A_TIME, first + count - start)
        yield texts(generator, start, size), embeddings_of(generator, size, arguments)


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


def embeddings_of(generator: np.random.Generator, count: int, arguments: argparse.Namespace) -> np.ndarray:
    """Around centres that are the same for every call, a hundred documents to a centre."""
    centres = np.random.default_rng(1).standard_normal(
        (max(arguments.documents // 100, 1), arguments.dim), np.float32
    )
    noise = generator.standard_normal((count, arguments.dim), np.float32)
    return unit(centres[generator.integers(0, len(centres), count)] + noise)


def unit(drawn: np.ndarray) -> np.ndarray:
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


if __name__ == "__main__":
    main()

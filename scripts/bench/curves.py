"""How costs grow with the number of documents: writing, building, opening, searching, training, memory.

    python scripts/bench/curves.py                             # 10³ to 10⁶ documents, 6 GB of disk
    python scripts/bench/curves.py --sizes 1000 3000 --record
    python scripts/bench/curves.py --sizes 10000000 --dim 96   # 20 GB of disk, an hour of CPU

The collections of large.py: embeddings are given, so that no encoder's time is in them, and the kind of index
is the one that dsearch takes by itself. One thread; CPU time, which other work on the machine changes little.

    write       documents in batches of 5,000, a document
    build       the generation: keys, keywords, files
    open        in a new process, after imports: collection, index and first search
    search      dense, keyword and hybrid; the median of forty queries, ten hits
    upsert      one document, searchable at once: the median of twenty
    train       an epoch of a head, 256 queries, softmax over all documents
    memory      of a process that searches, beyond its imports; without pages of mapped files

The exponent is the slope of cost over documents on logarithmic axes, by least squares over all sizes; beside
it that of the last step alone: where the two differ, the curve bends.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dsearch.threads import set_threads

set_threads(1)

import numpy as np
from large import AT_A_TIME, NAME, batches, embeddings_of, trained
from records import FOLDER, Record, describe_machine, present_commit, today, write_record

from dsearch.engine import SearchEngine
from dsearch.types import Mode

SIZES = (1_000, 10_000, 100_000, 1_000_000)
MODES: tuple[Mode, ...] = ("dense", "keyword", "hybrid")
SEARCHES, UPSERTS = 40, 20
WARM_UP = 500  # documents, before all others: what is paid once in a process is in no figure
COSTS = (
    "write, µs a document",
    "build, CPU s",
    "open, CPU s",
    *(f"search {mode}, CPU ms" for mode in MODES),
    "upsert, CPU ms",
    "train, CPU s an epoch",
    "memory, MiB",
)
NOTES = [
    "Twelve words a document, embeddings given: nothing is encoded.",
    "Building bends upwards where the keys get lists: these are trained, and their recall is measured.",
    "With `Flat` keys a million documents took a fifth of the time (`results/million.json`).",
    "Searches bend where what every query costs, 1 to 2 ms, ends to be most of it.",
    "Training and memory have fixed parts too.",
]
OPENING = """
import json, sys, time
from dsearch.threads import set_threads
set_threads(1)
from dsearch.engine import SearchEngine
def own():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024
before, started = own(), time.process_time()
with SearchEngine(sys.argv[1], readonly=True) as engine:
    collection = engine.collection(sys.argv[2])
    vector = [1.0] * int(sys.argv[3])
    collection.search("w1 w50 w500", vector=vector)
    opened = time.process_time() - started
    for number in range(20):
        collection.search(f"w{number} w{number + 50}", vector=vector)
    print(json.dumps([opened, own() - before]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="DOCUMENTS")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--kind", default="auto", help="how keys are kept (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where to make the homes (default: a temporary one)")
    parser.add_argument("--log", type=Path, help="JSON lines; sizes that it holds are not measured again")
    parser.add_argument("--record", action="store_true", help="write results/curves.json and its chart")
    arguments = parser.parse_args()
    costs = logged(arguments.log)
    if set(arguments.sizes) - costs.keys():
        measured(WARM_UP, arguments)
    for documents in arguments.sizes:
        if documents not in costs:
            costs[documents] = measured(documents, arguments)
            if arguments.log is not None:
                with arguments.log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps({"documents": documents, **costs[documents]}) + "\n")
    costs = {documents: costs[documents] for documents in sorted(arguments.sizes)}
    columns, rows = table(costs)
    for cells in (columns, ["---"] * len(columns), *rows):
        print("| " + " | ".join(cells) + " |")
    if arguments.record:
        record = Record(
            "In process",
            f"Cost by the number of documents, embeddings of {arguments.dim} numbers, index kind "
            f"{arguments.kind}, one thread",
            ["python scripts/bench/curves.py --record"],
            today(),
            present_commit(),
            describe_machine(),
            columns,
            rows,
            NOTES,
            chart="curves.svg",
        )
        write_record("curves", record)
        draw(costs, FOLDER / "curves.svg")


def logged(path: Path | None) -> dict[int, dict[str, float]]:
    """Sizes that an earlier run has measured."""
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return {line.pop("documents"): line for line in lines}


def measured(documents: int, arguments: argparse.Namespace) -> dict[str, float]:
    """All costs of one size."""
    sized = argparse.Namespace(documents=documents, dim=arguments.dim, kind=arguments.kind)
    home = Path(tempfile.mkdtemp(dir=arguments.folder))
    costs: dict[str, float] = {}
    try:
        for stage in (build, opening, train, search, upsert):
            costs |= stage(home, sized)
            print(f"{documents:,} {stage.__name__}: {costs}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(home)
    return costs


def build(home: Path, sized: argparse.Namespace) -> dict[str, float]:
    with SearchEngine(home) as engine:
        collection = engine.create(NAME, dimension=sized.dim)
        write_s = 0.0
        for documents, embeddings in batches(sized, 0, sized.documents):
            write_s += cpu_s(lambda: collection.store.upsert(documents, embeddings))  # noqa: B023
        build_s = cpu_s(lambda: collection.refresh(kind=sized.kind))
    return {"write, µs a document": write_s / sized.documents * 1e6, "build, CPU s": build_s}


def opening(home: Path, sized: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, "-c", OPENING, str(home), NAME, str(sized.dim)]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(3)]
    opened, memory = zip(*(json.loads(run.stdout) for run in runs), strict=True)
    return {"open, CPU s": statistics.median(opened), "memory, MiB": statistics.median(memory)}


def train(home: Path, sized: argparse.Namespace) -> dict[str, float]:
    (epoch_s,) = trained(home, sized).values()
    return {"train, CPU s an epoch": epoch_s}


def search(home: Path, sized: argparse.Namespace) -> dict[str, float]:
    vectors = embeddings_of(np.random.default_rng(3), SEARCHES + 2, sized).tolist()
    nothing = [None] * len(vectors)
    costs: dict[str, float] = {}
    with SearchEngine(home, readonly=True) as engine:
        collection = engine.collection(NAME)
        for mode in MODES:
            times = [
                cpu_s(lambda: collection.search(text, vector=vector, mode=mode))  # noqa: B023
                for vector, text in zip(vectors if mode != "keyword" else nothing, query_texts(), strict=True)
            ]
            costs[f"search {mode}, CPU ms"] = statistics.median(times[2:]) * 1000
    return costs


def query_texts() -> Iterator[str]:
    return (f"w{number} w{number + 50} w{number + 500}" for number in range(SEARCHES + 2))


def upsert(home: Path, sized: argparse.Namespace) -> dict[str, float]:
    with SearchEngine(home) as engine:
        collection = engine.collection(NAME)
        times = [
            cpu_s(lambda: collection.upsert(*batch))  # noqa: B023
            for first in range(UPSERTS + 1)
            for batch in batches(sized, sized.documents + first * AT_A_TIME, 1)
        ]
    return {"upsert, CPU ms": statistics.median(times[1:]) * 1000}


def cpu_s(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def table(costs: dict[int, dict[str, float]]) -> tuple[list[str], list[list[str]]]:
    """Columns, and a row a cost, with its exponents."""
    columns = ["cost", *(f"{documents:,}" for documents in costs), "exponent", "of the last step"]
    rows = []
    for name in COSTS:
        values = [of[name] for of in costs.values()]
        slopes = exponents(list(costs), values)
        rows.append([name, *(f"{value:.3g}" for value in values), *(f"{slope:+.2f}" for slope in slopes)])
    return columns, rows


def exponents(documents: list[int], values: list[float]) -> tuple[float, float]:
    """Slopes of cost over documents on logarithmic axes: of all sizes, of the last two; NaN for one size."""
    if len(documents) < 2:
        return float("nan"), float("nan")
    sizes, costs = np.log(documents), np.log(np.maximum(values, 1e-6))
    return float(np.polyfit(sizes, costs, 1)[0]), float(np.diff(costs)[-1] / np.diff(sizes)[-1])


def draw(costs: dict[int, dict[str, float]], path: Path) -> None:
    """All costs on logarithmic axes, each as a multiple of its first."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    sizes = list(costs)
    for number, name in enumerate(COSTS):
        values = np.array([of[name] for of in costs.values()])
        style = ("-", "--", ":")[number % 3]
        axes.loglog(sizes, values / values[0], marker="o", linestyle=style, label=name.split(",")[0])
    axes.loglog(sizes, np.array(sizes) / sizes[0], color="0.8", linewidth=6, zorder=0, label="proportional")
    axes.set(xlabel="documents", ylabel=f"times the cost of {sizes[0]:,} documents")
    axes.grid(visible=True, color="0.9")
    axes.legend(loc="upper left", fontsize="small")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()

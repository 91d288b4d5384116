"""Training on a GPU beside the CPU: seconds, rate, memory, and whether the gate says the same.

    python scripts/bench/devices.py DATA/scifact --home index
    python scripts/bench/devices.py DATA/scifact --home index --scopes head query --devices cpu --epochs 1
    python scripts/bench/devices.py DATA/scifact --scopes full --devices cuda --ways plain compiled both

The collection of the folder's name must be indexed; nothing is registered in it. Each training is `dsearch
train` on the folder's training split, in a process of its own, so that its peak memory is its own: of the
process, and for "cuda" of what torch holds on the card. The devices train beside each other, and on each of
them one training follows another. Seconds are those of the whole training, with tuning, judging and, in scope
full, encoding every document; *queries/s* are those of its epochs alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from dsearch.threads import set_threads

set_threads()

import torch
from records import Record, describe_machine, present_commit, today, write_record

from dsearch.cli.commands.evaluate import read_judgements
from dsearch.corpus import BeirFolder, Problems
from dsearch.encoder import DEFAULT_ENCODER, Encoder
from dsearch.engine import SearchEngine
from dsearch.jobs import TrainingJob
from dsearch.training import Observer, run_training
from dsearch.types import Progress

SCOPES = ("head", "query", "full")
# Ways of scope full: options of its training.
WAYS: dict[str, dict[str, object]] = {
    "plain": {},
    "bfloat16": {"precision": "bfloat16"},
    "compiled": {"compiled": True},
    "both": {"precision": "bfloat16", "compiled": True},
}
COLUMNS = [
    "scope",
    "device",
    "seconds",
    "queries/s",
    "documents encoded/s",
    "peak memory, MiB",
    "on the card, MiB",
    "nDCG@10 before",
    "after",
    "gate",
]


class Clock(Observer):
    """The time between the first and the last step of each stage, and the units done."""

    def __init__(self) -> None:
        self.began: dict[str, tuple[float, int]] = {}
        self.ended: dict[str, tuple[float, int]] = {}

    def progress(self, progress: Progress) -> None:
        now = (time.monotonic(), progress.done)
        self.began.setdefault(progress.stage, now)
        self.ended[progress.stage] = now

    def rate(self, stage: str) -> float | None:
        """Units a second; None for a stage of fewer than two reports."""
        if stage not in self.began or self.ended[stage] == self.began[stage]:
            return None
        (start, before), (end, after) = self.began[stage], self.ended[stage]
        return (after - before) / (end - start)


def train_once(arguments: argparse.Namespace) -> dict[str, object]:
    """One training, in this process."""
    scope, device, folder = arguments.scopes[0], arguments.devices[0], arguments.folder
    judged = read_judgements(folder, "train", None)
    texts = {query.id: query.text for query in BeirFolder(folder).queries(Problems())}
    queries = {id: texts[id] for id in judged.qrels}
    epochs = {} if arguments.epochs is None else {"epochs": arguments.epochs}
    chosen = {**epochs, **(WAYS[arguments.ways[0]] if scope == "full" else {})}
    job = TrainingJob(queries=queries, judgements=judged.qrels, scope=scope, **chosen)
    clock = Clock()
    name = arguments.encoder or DEFAULT_ENCODER
    source = partial(Encoder.load, name, device=device, dtype=arguments.dtype)
    with SearchEngine(arguments.home, readonly=True, encoder=source) as engine:
        collection = engine.collection(folder.name)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        started = time.monotonic()
        learned = run_training(collection, job, clock, device=device)
        took_s = time.monotonic() - started
    record = learned.result.record
    whole = record["gate"]["slices"][0]
    steps, encoded = clock.rate("train"), clock.rate("encode")
    return {
        "seconds": took_s,
        "queries_per_s": None if steps is None else steps * record["options"]["batch_size"],
        "encoded_per_s": encoded,
        "process_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "card_mib": torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None,
        "before": whole["before"],
        "after": whole["after"],
        "verdict": record["gate"]["verdict"],
    }


def measure(arguments: argparse.Namespace, scope: str, device: str, way: str) -> list[str]:
    """One training in a process of its own, as a row of the record."""
    command = [sys.executable, __file__, str(arguments.folder), "--home", str(arguments.home), "--here"]
    command += ["--scopes", scope, "--devices", device, "--ways", way, "--dtype", arguments.dtype]
    if arguments.encoder is not None:
        command += ["--encoder", arguments.encoder]
    if arguments.epochs is not None:
        command += ["--epochs", str(arguments.epochs)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    counts = [result[name] for name in ("queries_per_s", "encoded_per_s", "process_mib", "card_mib")]
    figures = [f"{result['seconds']:.1f}", *("" if one is None else f"{one:,.0f}" for one in counts)]
    name = scope if way == "plain" else f"{scope}, {way}"
    return [name, device, *figures, f"{result['before']:.4f}", f"{result['after']:.4f}", result["verdict"]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--home", type=Path, default=Path("index"))
    parser.add_argument("--encoder", help="name or folder, as in the collection")
    parser.add_argument("--dtype", default="float32", help="of the encoder: float32 or bfloat16")
    parser.add_argument("--scopes", nargs="+", choices=SCOPES, default=SCOPES)
    parser.add_argument("--devices", nargs="+", default=["cuda", "cpu"])
    parser.add_argument("--epochs", type=int, help="default: that of each scope")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["plain"], help="ways of scope full")
    parser.add_argument("--record", metavar="NAME", help="write results/NAME.json")
    parser.add_argument("--here", action="store_true", help="one training in this process, as JSON")
    arguments = parser.parse_args()
    if "cuda" in arguments.devices and not torch.cuda.is_available():
        print("no CUDA GPU that torch can see, so nothing was measured; --devices cpu trains without one")
        sys.exit(1)
    if arguments.here:
        print(json.dumps(train_once(arguments)))
        return
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    rows: list[list[str]] = []

    def train_all(device: str) -> None:
        for scope in arguments.scopes:
            for way in arguments.ways if scope == "full" else ["plain"]:
                row = measure(arguments, scope, device, way)
                rows.append(row)
                print("| " + " | ".join(row) + " |", flush=True)

    with ThreadPoolExecutor(len(arguments.devices)) as beside:
        list(beside.map(train_all, arguments.devices))
    if arguments.record:
        card = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
        machine = f"{describe_machine().removesuffix(', no GPU')}{card}, torch {torch.__version__}"
        command = f"python scripts/bench/devices.py DATA/{arguments.folder.name}"
        command += f" --scopes {' '.join(arguments.scopes)} --devices {' '.join(arguments.devices)}"
        command += f" --ways {' '.join(arguments.ways)} --record {arguments.record}"
        title = f"Training on {' beside '.join(arguments.devices)}, {arguments.folder.name}"
        record = Record("GPU", title, [command], today(), present_commit(), machine, COLUMNS, rows)
        write_record(arguments.record, record)


if __name__ == "__main__":
    main()

"""CPU seconds of a new process until its first answer: command line, Python, server, beside bare imports.

    python scripts/bench/starts.py
    python scripts/bench/starts.py --against CHECKOUT --record

Collections of --documents made-up documents are indexed by the default encoder, whose export for OpenVINO is
there already: one untrained, one with a query memory, one with a memory and a second stage. Every figure is
user and system time of the process, the median of --rounds, with one thread.
`--against` measures another checkout by turns. The first round warms the caches of files and is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from by_turns import ONE_THREAD
from records import Record, describe_machine, present_commit, today, write_record

ROOT = Path(__file__).parents[2]
AIM_S = 1.5
EXPORT = """
import sys
from pathlib import Path
from dsearch.encoder import load_encoder
load_encoder(backend="openvino", cache=Path(sys.argv[1]))
"""
PYTHON = """
import sys
import dsearch
with dsearch.open(sys.argv[1], readonly=True) as engine:
    assert engine.search(sys.argv[2], "boats on a river").hits
"""
TRAIN = """
import sys
import numpy as np
import dsearch
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.attention.retrieval.second_stage import SecondStage
with dsearch.open(sys.argv[1]) as client:
    collection = client.engine.collection(sys.argv[2])
    state = collection.snapshot
    embeddings = state.embeddings(state.visible()[None])[0]
    every = np.arange(len(embeddings))
    drawn = embeddings + np.random.default_rng(0).normal(size=embeddings.shape, scale=0.02)
    rows = state.rows(state.visible())
    memory = QueryMemory(drawn.astype(np.float32), embeddings, rows, every, every, np.ones(len(rows)))
    head = Head(collection.store.dimension).remembering(memory.with_setting(0.5, 0.05, 0.5))
    if state.tokens is not None:
        head.second_stage = SecondStage()
        head.second_stage.feature_weights.data += 0.1
    collection.promote(collection.add_model(head, {}))
"""
KINDS = {"made": "", "remembered": ", query memory", "staged": ", memory and second stage"}
WORDS = ("river", "boat", "wing", "wind", "sail", "motor", "paper", "light", "green", "leaf", "sky", "music")


def main() -> None:
    """Print the table, and write the record if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="root of another checkout")
    parser.add_argument("--before", default="", help="commit of that checkout, for the record")
    parser.add_argument("--record", action="store_true", help="write results/starts.json")
    options = parser.parse_args()
    checkouts = {"now": ROOT} | ({} if options.against is None else {"before": options.against})
    took: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        starts = {
            name: Starts(root, Path(folder) / name, options.documents) for name, root in checkouts.items()
        }
        for number in range(options.rounds + 1):
            for name, start in starts.items():
                for what, seconds in start.measured().items():
                    if number:
                        took.setdefault(what, {}).setdefault(name, []).append(seconds)
    rows = [table_row(what, of) for what, of in took.items()]
    columns = ["process", "CPU s", "before", "aim"]
    for row in (columns, ["---"] * len(columns), *rows):
        print("| " + " | ".join(row) + " |")
    if options.record:
        against = "" if options.against is None else " --against CHECKOUT"
        sizes = f"--documents {options.documents} --rounds {options.rounds}"
        command = f"python scripts/bench/starts.py {sizes}{against}"
        method = f"{options.documents} documents, OpenVINO, untrained but where a part is named; "
        method += f"user and system time, one thread, medians of {options.rounds} rounds by turns. "
        method += "Bare imports say how fast the machine was."
        notes = [method]
        if options.against is not None:
            notes.append(f"Before: commit {options.before}.")
        title = "CPU seconds of a new process until its first answer"
        machine, commit = describe_machine(), present_commit()
        write_record(
            "starts", Record("In process", title, [command], today(), commit, machine, columns, rows, notes)
        )


def table_row(what: str, of: dict[str, list[float]]) -> list[str]:
    """Medians of one kind of process, with the aim of those that search."""
    now, *before = (f"{statistics.median(of[name]):.2f}" for name in ("now", "before") if name in of)
    return [what, now, before[0] if before else "", f"{AIM_S}" if what.startswith("search") else ""]


class Starts:
    """The processes of one checkout.

    Args:
        root: the checkout.
        folder: home and cache are made in it.
        documents: size of the collection.
    """

    def __init__(self, root: Path, folder: Path, documents: int):
        folder.mkdir()
        self.home, draw = folder / "home", random.Random(0)
        own = {
            "PYTHONPATH": str(root),
            "DSEARCH_CACHE": str(folder / "cache"),
            "DSEARCH_HOME": str(self.home),
        }
        self.environment = {**os.environ, **ONE_THREAD, **own}
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)
        content = folder / "made.jsonl"
        lines = [{"_id": f"d{row}", "text": " ".join(draw.choices(WORDS, k=12))} for row in range(documents)]
        content.write_text("\n".join(map(json.dumps, lines)), "utf-8")
        self._run("-c", EXPORT, str(folder / "cache"))
        for name in KINDS:
            stage = ["--second-stage"] if name == "staged" else []
            self._run("-m", "dsearch", "index", str(content), "-c", name, *stage)
            if name != "made":
                self._run("-c", TRAIN, str(self.home), name)

    def measured(self) -> dict[str, float]:
        """CPU seconds of each kind of process, once."""
        searches = {
            f"search {how}{what}": (*command, name)
            for name, what in KINDS.items()
            for how, command in (
                ("by the command line", ("-m", "dsearch", "search", "boats on a river", "-c")),
                ("in Python", ("-c", PYTHON, str(self.home))),
            )
        }
        return {
            "import torch": self._run("-c", "import torch"),
            "import torch, sentence_transformers": self._run("-c", "import torch, sentence_transformers"),
            "dsearch --version": self._run("-m", "dsearch", "--version"),
            **{what: self._run(*command) for what, command in searches.items()},
            "server, to its first answer": self._serve(),
        }

    def _run(self, *arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, *arguments],
            env=self.environment,
            check=True,
            capture_output=True,
            cwd=self.home.parent,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def _serve(self) -> float:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "dsearch", "serve", "--port", str(port)]
        process = subprocess.Popen(
            command,
            env=self.environment,
            cwd=self.home.parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            question = f"http://127.0.0.1:{port}/v1/collections/made/search?query=boats+on+a+river"
            for _ in range(3000):
                try:
                    with urllib.request.urlopen(question, timeout=60) as answer:
                        assert json.load(answer)["hits"]
                        break
                except OSError:
                    time.sleep(0.05)
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Function calls and bytecodes of one warm search and one upsert, as JSON: figures that a busy machine keeps.

    python scripts/bench/steps.py                         in each of the checkouts that are to be compared

Time on a shared machine differs by tens of per cent from run to run; what Python executes does not. Native
work (FAISS, BM25, SQLite, matrix products) is one call each. A collection of 1,000 documents with embeddings
of 128 numbers, queries with a vector, so that no encoder takes part.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Callable
from types import FrameType
from typing import Any

from dsearch.threads import set_threads

set_threads(1)

import numpy as np

from dsearch.client import LocalEngine
from dsearch.engine import SearchEngine
from dsearch.types import EmbeddedDocument

DIMENSION, DOCUMENTS = 128, 1000
WORDS = [f"w{number}" for number in range(3000)]


def main() -> None:
    draw, vectors = random.Random(1), np.random.default_rng(0)

    def document(id: str) -> EmbeddedDocument:
        vector = vectors.standard_normal(DIMENSION)
        text = " ".join(draw.choices(WORDS, k=60))
        return EmbeddedDocument(id, text, embedding=(vector / np.linalg.norm(vector)).tolist())

    with tempfile.TemporaryDirectory() as home, SearchEngine(home) as engine:
        papers = engine.collection_or_new("papers", dimension=DIMENSION)
        papers.ingest([document(f"d{number}") for number in range(DOCUMENTS)])
        local, new_ids = LocalEngine(engine), iter(map(str, range(DOCUMENTS)))
        query, vector = "w1 w2 w3 w4 w5", vectors.standard_normal(DIMENSION)
        measured: dict[str, Callable[[], Any]] = {
            "search, hybrid": lambda: papers.search(query, vector=vector),
            "search, dense": lambda: papers.search(query, vector=vector, mode="dense"),
            "search of dsearch.open": lambda: local.search("papers", query, vector=vector),
            "upsert": lambda: papers.upsert([document(next(new_ids))]),
            "upsert of dsearch.open": lambda: local.upsert("papers", [document(next(new_ids))]),
        }
        print(json.dumps({name: steps_of(work) for name, work in measured.items()}, indent=1))


def steps_of(work: Callable[[], Any]) -> dict[str, int]:
    """Calls and bytecodes of some work that has run before."""
    counts = {"calls": 0, "bytecodes": 0}

    def called(_: FrameType, event: str, __: Any) -> None:
        counts["calls"] += event in ("call", "c_call")

    def executed(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counts["bytecodes"] += event == "opcode"
        return executed

    for _ in range(3):
        work()
    for watch, watcher in ((sys.setprofile, called), (sys.settrace, executed)):
        watch(watcher)
        work()
        watch(None)
    return counts


if __name__ == "__main__":
    main()

"""A process that writes without end and is killed: run by store_trials.py.

    python crash_writer.py FOLDER               create the collection, no more
    python crash_writer.py FOLDER SEED [STEPS]

A line on standard output before each operation ("try …") and one after it was acknowledged ("ack …").
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dsearch.store import MemoryRow, Store
from dsearch.types import Document

DIMENSION = 64
KINDS = ["upsert"] * 5 + ["text", "delete", "delete matching", "promote", "publish", "purge", "backup"]
KINDS += ["judge", "judge", "drop judged"]


def vector(text: str) -> np.ndarray:
    """An embedding that depends on the text alone, so that the reader can tell a torn one."""
    return np.random.default_rng(list(text.encode())).normal(size=DIMENSION).astype(np.float32)


def plan(generator: random.Random, step: int) -> dict[str, Any]:
    """One random operation."""
    kind = generator.choice(KINDS)
    ids = generator.sample(range(60), generator.randint(1, 12))
    return {
        "kind": kind,
        "ids": [f"d{id}" for id in ids],
        "text": f"step {step} " * generator.randint(1, 200),
        "step": step,
    }


def apply(store: Store, operation: dict[str, Any]) -> int:
    """Do it; returns the sequence that the store acknowledged."""
    documents = [Document(id, f"{id} {operation['text']}", metadata={"name": id}) for id in operation["ids"]]
    if operation["kind"] == "upsert":
        return store.upsert(
            documents, np.array([vector(document.content) for document in documents])
        ).sequence
    if operation["kind"] == "delete":
        return store.delete(operation["ids"]).sequence
    if operation["kind"] == "delete matching":
        return store.delete_matching({"name": {"in": operation["ids"]}}).sequence
    if operation["kind"] == "publish":
        number, snapshot = store.next_generation_number(), store.snapshot()
        rows = len(snapshot.rows)
        store.add_generation(number, manifest_digest="ab" * 32, rows=rows, snapshot=snapshot.sequence)
        store.publish_generation(number)
        for old in store.retirable_generations(keep=1):
            store.retire_generation(old)
        return store.sequence
    if operation["kind"] == "judge":
        texts = [f"{id} {operation['step']}" for id in operation["ids"]]
        return store.add_judged([MemoryRow(text, vector(text), {1: 1.0}) for text in texts])
    if operation["kind"] == "drop judged":
        return store.drop_judged(0)[0]
    if operation["kind"] == "purge":
        return store.purge().sequence
    if operation["kind"] == "backup":
        return store.backup(store.path.with_name(f"{store.path.name}-backup-{operation['step']}")).sequence
    if operation["kind"] == "promote":
        version = store.next_model_version()
        store.add_model(version, "v0", {"text": operation["text"]})
        return store.promote(version)
    store.upsert(documents)
    waiting = store.pending().rows
    return store.set_embeddings(waiting, np.array([vector(content) for content in store.contents(waiting)]))


def create(folder: Path) -> None:
    Store.create(folder, name="papers", encoder={}, dimension=DIMENSION).close()


def main() -> None:
    """Write until killed, or until the given number of steps is done."""
    folder = Path(sys.argv[1])
    if len(sys.argv) == 2:
        create(folder)
        return
    seed = int(sys.argv[2])
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 10**9
    generator = random.Random(seed)
    store = Store.open(folder)
    for step in range(steps):
        operation = plan(generator, seed * 10**6 + step)
        os.write(1, f"try {json.dumps(operation)}\n".encode())
        os.write(1, f"ack {apply(store, operation)}\n".encode())
    store.close()


if __name__ == "__main__":
    main()

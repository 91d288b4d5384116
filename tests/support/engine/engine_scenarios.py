"""What the killed processes of engine_trials.py do: eight scenarios of a collection's life, step by step.

A line on standard output before each step ("try 3") and one after it was acknowledged ("ack 3").
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.fakes import HashingEncoder

from dsearch.engine import SearchEngine
from dsearch.types import Document

NAME = "papers"
DIMENSION = 8
SCENARIOS = ("create", "bulk index", "upsert", "delete", "build", "publish", "promote", "backup")


@dataclass(frozen=True)
class Step:
    """One thing that is asked of an engine: its kind, and documents or a name."""

    kind: str
    ids: tuple[str, ...] = ()
    word: str = ""


def encoder() -> HashingEncoder:
    return HashingEncoder(DIMENSION)


def documents(ids: Sequence[str], word: str) -> list[Document]:
    """Every text has the word "every"; its length depends on the document, so pages fill differently."""
    filler = {id: "filler " * (1 + 31 * sum(map(ord, id + word)) % 60) for id in ids}
    return [Document(id, f"every {id} {word} {filler[id]}", metadata={"name": id}) for id in ids]


def before(scenario: str, seed: int) -> list[Step]:
    """What the collection went through, undisturbed, before the scenario."""
    if scenario == "create":
        return []
    generator = random.Random(seed)
    old = tuple(f"d{n}" for n in range(12 + seed % 7))
    steps = [
        Step("create"),
        Step("ingest", old, "old"),
        Step("upsert", ("fresh1", "fresh2", "d1"), "fresh"),
        Step("delete", tuple(generator.sample(old, 2))),
        Step("model", word="trained"),
    ]
    if scenario == "publish":  # so many that publishing lets the oldest go
        steps += [Step("refresh"), Step("upsert", ("d2",), "later"), Step("refresh")]
    return steps


def of(scenario: str, seed: int) -> list[Step]:
    """The steps of a scenario."""
    word = f"new{seed}"
    generator = random.Random(f"{scenario} {seed}")
    some = tuple(f"d{n}" for n in sorted(generator.sample(range(12), 4)))
    return {
        "create": [Step("create")],
        "bulk index": [Step("ingest", (*some, *(f"more{n}" for n in range(9 + seed % 5))), word)],
        "upsert": [Step("upsert", some, word), Step("upsert", ("one more",), word)],
        "delete": [Step("delete", some[:2]), Step("delete matching", some[2:])],
        "build": [Step("upsert", some, word), Step("refresh")],
        "publish": [Step("upsert", some[:1], word), Step("refresh"), Step("delete", some[1:2])],
        "promote": [Step("promote", word="v1"), Step("model", word=word), Step("promote", word="v2")],
        "backup": [Step("backup", word=word), Step("upsert", some[:1], word)],
    }[scenario]


def perform(engine: SearchEngine, step: Step) -> None:
    """Do it; what returns is acknowledged."""
    if step.kind == "create":
        engine.create(NAME)
        return
    collection = engine.collection(NAME)
    if step.kind == "ingest":
        collection.ingest(documents(step.ids, step.word))
    elif step.kind == "upsert":
        collection.upsert(documents(step.ids, step.word))
    elif step.kind == "delete":
        collection.delete(step.ids)
    elif step.kind == "delete matching":
        collection.delete_matching({"name": {"in": list(step.ids)}})
    elif step.kind == "refresh":
        collection.refresh()
    elif step.kind == "model":
        collection.add_model(collection.head("v0"), {"trained": step.word})
    elif step.kind == "promote":
        collection.promote(step.word)
    elif step.kind == "backup":
        engine.backup(NAME, backup_of(engine.home.path))
    else:
        raise AssertionError(step.kind)


def backup_of(home: Path) -> Path:
    return home.with_name(f"{home.name}-backup")


def live(home: Path, steps: Sequence[Step]) -> None:
    """Open, do the steps, close."""
    with SearchEngine(home, encoder=encoder) as engine:
        for number, step in enumerate(steps):
            os.write(1, f"try {number}\n".encode())
            perform(engine, step)
            os.write(1, f"ack {number}\n".encode())

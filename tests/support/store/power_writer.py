"""The life of a small collection, step by step, for power_loss.py to record: every step that publishes.

    python power_writer.py HOME

A line on standard output before each step ("try 3") and one after it was acknowledged ("ack 3").
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dsearch.index import Generation
from dsearch.store import Event, FeedbackStore, Impression, Store
from dsearch.types import Document

DIMENSION = 8
NAME = "papers"


@dataclass(frozen=True)
class Shown:
    """What the collection must show after a step."""

    texts: dict[str, str] = field(default_factory=dict)
    generation: int = 0
    model: str = "v0"
    clicks: frozenset[str] = frozenset()


def vector(text: str) -> np.ndarray:
    return np.random.default_rng(list(text.encode())).normal(size=DIMENSION).astype(np.float32)


def generation_folder(folder: Path, number: int) -> Path:
    return folder / "generations" / f"{number:06d}"


def build(store: Store) -> None:
    """As the engine does it: the files first, then the register, then the row that makes them live."""
    state, number = store.snapshot(), store.next_generation_number()
    manifest = Generation.build(
        generation_folder(store.path, number),
        number=number,
        sequence=state.sequence,
        rows=state.rows,
        embeddings=store.embeddings(state.rows),
        texts=store.contents(state.rows),
        encoder=store.encoder,
    )
    store.add_generation(
        number, manifest_digest=manifest.digest, rows=len(state.rows), snapshot=state.sequence
    )
    store.publish_generation(number)


def retire(store: Store) -> None:
    for number in store.retirable_generations(keep=1):
        store.retire_generation(number)
        shutil.rmtree(generation_folder(store.path, number))


def promote(store: Store) -> None:
    store.add_model("v1", "v0", {"text": "a head"})
    store.promote("v1")


def upsert(ids: range, words: str) -> tuple[Callable[[Store], None], Callable[[Shown], Shown]]:
    texts = {f"d{id}": f"{words} {id} " * 20 for id in ids}

    def write(store: Store) -> None:
        documents = [Document(id, text) for id, text in texts.items()]
        store.upsert(documents, np.array([vector(document.content) for document in documents]))

    return write, lambda shown: replace(shown, texts=shown.texts | texts)


def delete(ids: range) -> tuple[Callable[[Store], None], Callable[[Shown], Shown]]:
    gone = {f"d{id}" for id in ids}
    return lambda store: store.delete(sorted(gone)) and None, lambda shown: replace(
        shown, texts={id: text for id, text in shown.texts.items() if id not in gone}
    )


def clicked(name: str) -> tuple[Callable[[Store], None], Callable[[Shown], Shown]]:
    """A click, of a key of its own; the file is closed after it."""

    def write(store: Store) -> None:
        feedback = FeedbackStore(store.path)
        event = Event(name, "q1", name, "", "click", "d1", 1, 0.0, 2.0)
        feedback.record([Impression("q1", "words " * 50, 1.0, ids=("d1",))], [event])
        feedback.close()

    return write, lambda shown: replace(shown, clicks=shown.clicks | {name})


def unclicked(name: str) -> tuple[Callable[[Store], None], Callable[[Shown], Shown]]:
    return (
        lambda store: FeedbackStore(store.path).clear(key=name) and None,
        lambda shown: replace(shown, clicks=shown.clicks - {name}),
    )


def built(number: int) -> tuple[Callable[[Store], None], Callable[[Shown], Shown]]:
    return build, lambda shown: replace(shown, generation=number)


STEPS: list[tuple[Callable[[Store], None], Callable[[Shown], Shown]]] = [
    upsert(range(8), "first"),
    clicked("a"),
    built(1),
    upsert(range(6, 12), "second"),
    delete(range(3)),
    clicked("b"),
    unclicked("a"),
    built(2),
    (retire, lambda shown: shown),
    (promote, lambda shown: replace(shown, model="v1")),
    upsert(range(2), "third"),
    (lambda store: store.purge() and None, lambda shown: shown),
]


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main() -> None:
    folder = Path(sys.argv[1]) / NAME
    say("try 0")
    store = Store.create(folder, name=NAME, encoder={"name": "test"}, dimension=DIMENSION)
    say("ack 0")
    for number, (write, _) in enumerate(STEPS, start=1):
        say(f"try {number}")
        write(store)
        say(f"ack {number}")
    store.close()


if __name__ == "__main__":
    main()

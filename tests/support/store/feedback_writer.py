"""Writes feedback until it is killed: `python feedback_writer.py FOLDER [BATCHES]`. Not a test.

A line on standard output after each acknowledged batch: the ids of its events. With a number of batches it
ends after them, and clears the first key's events in the middle, whose line is "cleared".
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dsearch.store import Event, FeedbackStore, Impression

KEYS = 3


def ids(batch: int) -> list[str]:
    """Of the events of a batch; the last digit is the number of its key."""
    return [f"e{batch}-{n}" for n in range(KEYS)]


def write(store: FeedbackStore, batch: int) -> None:
    events = [
        Event(name, f"q{batch}", f"key{n}", "", "click", "d1", 1, 0.0, float(batch))
        for n, name in enumerate(ids(batch))
    ]
    page = Impression(f"q{batch}", "words " * 50, 0.0, ids=("d1",), weights=(1.0,))
    store.record([page], events)


def main() -> None:
    store = FeedbackStore(Path(sys.argv[1]))
    batches = int(sys.argv[2]) if len(sys.argv) > 2 else None
    for batch in range(1_000_000 if batches is None else batches):
        if batches is not None and batch == batches // 2:
            store.clear(key="key0")
            os.write(1, b"cleared\n")
        write(store, batch)
        os.write(1, (" ".join(ids(batch)) + "\n").encode())


if __name__ == "__main__":
    main()

"""Trials that kill a writer of feedback, or flip bits in its log: the tests run a few, scripts/soak_store.py
as many as a night takes.

Each function raises AssertionError when a promise is broken, and returns what it saw.
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
from pathlib import Path

import numpy as np
from feedback_writer import ids, write
from forked import Forks, killing
from store_trials import HERE, flip

from dsearch.errors import CorruptData
from dsearch.store import FeedbackStore

_BATCHES = 4
NAMES = ("feedback.db", "feedback.db-wal", "feedback.watermark")


def forks() -> Forks:
    """Where the writers come from."""
    return Forks(HERE, "feedback_writer")


def events_of(store: FeedbackStore) -> list[str]:
    return sorted(event.event_id for page in store.pages() for event in page.events)


def make_format_1(folder: Path) -> None:
    """A file with one batch, as a release without watermarks left it."""
    store = FeedbackStore(folder)
    write(store, 9)
    store.close()
    with sqlite3.connect(folder / "feedback.db") as connection:
        connection.execute("DROP TABLE state")
        connection.execute("UPDATE meta SET value = '1' WHERE key = 'format'")
    connection.close()
    (folder / "feedback.watermark").unlink()


def kills(forks: Forks, scratch: Path, trials: int, *, old: bool = False) -> dict[str, int]:
    """A writer dies on entry to calls that change files, evenly spread over its life.

    It makes the file, or (`old`) brings one of format 1 up to the present one, writes, and clears a key.
    """
    first = scratch / "first"
    first.mkdir()
    if old:
        make_format_1(first)
    states = [set(events_of(FeedbackStore(first)))]
    for batch in range(_BATCHES):
        if batch == _BATCHES // 2:
            states.append({name for name in states[-1] if not name.endswith("-0")})
        states.append(states[-1] | set(ids(batch)))
    whole = shutil.copytree(first, scratch / "whole")
    points = forks.calls("feedback_writer", [whole, _BATCHES], scratch)
    assert set(events_of(FeedbackStore(whole))) == states[-1]
    places = np.unique(np.linspace(0, len(points) - 1, trials).astype(int)).tolist()
    for place in places:
        copy = shutil.copytree(first, scratch / f"killed-{place}")
        status, log = forks.run(
            "feedback_writer", [copy, _BATCHES], scratch / "out", strace=killing(points[place])
        )
        assert status == -signal.SIGKILL, f"{points[place]} was not reached"
        store = FeedbackStore(copy)
        assert store.loss() is None, points[place]
        found = set(events_of(store))
        assert found in states[len(log) : len(log) + 2], points[place]
        write(store, 99)
        store.close()
        assert FeedbackStore(copy).damage() == (), points[place]
        assert set(events_of(FeedbackStore(copy))) == found | set(ids(99)), points[place]
        shutil.rmtree(copy)
    return {"kills": len(places), "calls": len(points)}


def flips_in_the_log(scratch: Path, trials: int, *, seed: int = 5) -> dict[str, int]:
    """A flip in the log that a kill left drops no acknowledged event unnoticed."""
    open_one = scratch / "open"
    open_one.mkdir()
    store = FeedbackStore(open_one)
    for batch in range(_BATCHES):
        write(store, batch)
    killed = shutil.copytree(open_one, scratch / "killed")
    store.close()
    written = events_of(FeedbackStore(Path(shutil.copytree(killed, scratch / "answer"))))
    assert len(written) == 3 * _BATCHES
    size = (killed / "feedback.db-wal").stat().st_size
    generator = np.random.default_rng(seed)
    found = 0
    for trial in range(trials):
        copy = scratch / f"log-{trial}"
        copy.mkdir()
        for name in NAMES:
            shutil.copy(killed / name, copy / name)
        flip(copy, int(generator.integers(size)), int(generator.integers(8)), "feedback.db-wal")
        damaged = FeedbackStore(copy)
        try:
            assert events_of(damaged) == written, "an acknowledged event is gone, and nobody said so"
            write(damaged, 99)
        except CorruptData:
            found += 1
            for _ in range(2):  # it goes on with what is there, once that was said
                damaged.clear(damaged=True)
                write(damaged, 99)
            assert damaged.damage() == ()
        damaged.close()
        shutil.rmtree(copy)
    return {"flips": trials, "found": found}

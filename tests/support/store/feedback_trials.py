"""Trials that kill a writer of feedback, let its disk fail, or flip bits in its log: the tests run a few,
scripts/trials/soak_store.py as many as a night takes.

Each function raises AssertionError when a promise is broken, and returns what it saw.
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
from support.forked import Forks, injecting, killing
from support.store.fault_writer import SMALLEST
from support.store.feedback_writer import ids, write
from support.store.store_trials import FAULTS as FAULTS_OF_FILES
from support.store.store_trials import HERE, flip

from dsearch.errors import CorruptData
from dsearch.store import FeedbackStore, Store
from dsearch.types import Document

_BATCHES = 4
NAMES = ("feedback.db", "feedback.db-wal", "feedback.watermark")


def forks() -> Forks:
    """Where the writers come from."""
    return Forks(HERE, "feedback_writer", "feedback_fault_writer")


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
        assert FeedbackStore(copy).problem() is None, points[place]
        assert set(events_of(FeedbackStore(copy))) == found | set(ids(99)), points[place]
        shutil.rmtree(copy)
    return {"kills": len(places), "calls": len(points)}


# A folder is synced by another call than a file.
FAULTS = (*FAULTS_OF_FILES, ("fsync", "EIO"))


def faults(forks: Forks, scratch: Path, trials: int) -> dict[str, int]:
    """A call fails (a write twice in a row) while feedback is made, written and cleared: nothing false is
    acknowledged, and reading feedback and documents goes on.

    After a failed sync nothing is acknowledged again; after a full disk the next writes are.
    """
    folder = scratch / "papers"
    with Store.create(folder, name="papers", encoder={}, dimension=2) as store:
        store.upsert([Document(f"d{n}", f"text {n}") for n in range(5)])
    whole = shutil.copytree(folder, scratch / "whole")
    calls = forks.calls("feedback_fault_writer", [whole, _BATCHES, 0], scratch)
    after_opening = calls[calls.index(("write", 1)) :]
    of_call = {call: [n for name, n in after_opening if name == call] for call, _ in FAULTS}
    largest = max((whole / name).stat().st_size for name in NAMES if (whole / name).exists())
    tally: Counter[str] = Counter()
    for trial in range(trials):
        call, error = FAULTS[trial % len(FAULTS)]
        share = (trial // len(FAULTS) + 0.5) / max(1, trials / len(FAULTS))
        numbers = of_call[call]
        number = numbers[min(int(share * len(numbers)), len(numbers) - 1)]
        when = f"{number}..{number + 1}" if call == "pwrite64" else f"{number}"
        limit, strace = 0, None
        if error == "short":
            limit = SMALLEST + int(share * (largest - SMALLEST))
            when = f"{limit}"
        else:
            strace = injecting(call, when, f"error={error}")
        copy = shutil.copytree(folder, scratch / f"fault-{trial}")
        arguments = [copy, _BATCHES, limit]
        status, log = forks.run("feedback_fault_writer", arguments, scratch / "out", strace=strace)
        where = f"{call} {error} {when}: {log}"
        assert status == 0, where
        assert (log[0], log[-1]) == ("opened", "end"), where
        _check_faults(copy, log[1:-1], error, where, tally)
        shutil.rmtree(copy)
    return {"faults": trials, **tally}


def _check_faults(copy: Path, log: list[str], error: str, where: str, tally: Counter[str]) -> None:
    reads = [line for line in log if line.startswith("refused")]
    assert len(reads) <= ("pwrite64" in where), where  # of two calls in a row the second may be a reader's
    verbs = [line.split()[0] for line in log if line not in reads]
    codes = {line.split()[1] for line in log if line.startswith(("err", "refused"))}
    assert codes <= {"unavailable", "insufficient_storage"}, where
    if "err" in verbs:
        tally["short writes"] += error == "short"
        tally["errors"] += 1
        after = verbs[verbs.index("err") :]
        if {line.split()[1] for line in log if line.startswith("err")} == {"insufficient_storage"}:
            assert len(after) <= 2 or after[-1] == "ack", f"writes go on when there is space again; {where}"
            tally["recovered"] += 1
        else:
            assert "ack" not in after[after.index("err") :], f"trusted again; {where}"
            tally["refused for good"] += 1
    store = FeedbackStore(copy)
    assert store.loss() is None, where
    assert store.problem() is None, where
    found = set(events_of(store))
    cleared = "ack cleared" in log
    for number in range(_BATCHES):
        left = set(ids(number))
        if cleared and number < _BATCHES // 2:
            assert not found & {f"e{number}-0"}, f"what was cleared is back; {where}"
        if number < _BATCHES // 2:
            left.discard(f"e{number}-0")  # a clearing that was refused may be done all the same
        there = found & left
        if f"ack {number}" in log:
            assert there == left, f"an acknowledged event is gone; {where}"
        assert there in (set(), left), f"half of a batch; {where}"
    write(store, 99)  # as a server that was started again does
    assert set(events_of(store)) == found | set(ids(99)), where
    store.close()


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
            assert damaged.problem() is None
        damaged.close()
        shutil.rmtree(copy)
    return {"flips": trials, "found": found}

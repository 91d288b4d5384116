"""Trials that kill, break or flip: the tests run a few, scripts/trials/soak_store.py many.

Each function runs `trials` of them, raises AssertionError when a promise is broken, and returns what it saw.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from support.forked import Forks, injecting, killing
from support.store.crash_writer import create, vector
from support.store.fault_writer import SMALLEST

from dsearch.errors import CorruptData, DsearchError
from dsearch.store import Store

HERE = Path(__file__).parent
WRITER = [sys.executable, "-B", str(HERE / "crash_writer.py")]
STRACE = ["strace", "-f", "-qq"]


def forks() -> Forks:
    """Where the writers come from."""
    return Forks(HERE, "crash_writer", "fault_writer")


class Expected:
    """What the collection must hold: ids with their texts, and the live model's text."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.model = ""
        self.judged: list[str] = []

    def apply(self, operation: dict[str, Any]) -> Expected:
        after = Expected()
        after.texts, after.model, after.judged = dict(self.texts), self.model, [*self.judged]
        for id in operation["ids"]:
            if operation["kind"] in ("upsert", "text"):
                after.texts[id] = f"{id} {operation['text']}"
            elif operation["kind"] in ("delete", "delete matching"):
                after.texts.pop(id, None)
        if operation["kind"] == "judge":
            after.judged += [f"{id} {operation['step']}" for id in operation["ids"]]
        if operation["kind"] == "drop judged":
            after.judged = []
        if operation["kind"] == "promote":
            after.model = operation["text"]
        return after

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expected) and self._parts() == other._parts()

    def _parts(self) -> tuple[dict[str, str], str, list[str]]:
        return self.texts, self.model, self.judged

    __hash__ = None  # type: ignore[assignment]


def found_in(store: Store) -> Expected:
    found = Expected()
    found.texts = {document.id: document.text for document in store.list(limit=1000)}
    found.model = store.model(store.live_model()).record.get("text", "")
    found.judged = [row.text for row in store.judged()]
    return found


def check(folder: Path, expected: Expected, log: list[str]) -> Expected:
    """Hold a collection against what it held before and what a writer printed; returns what it holds."""
    acknowledged, attempted = 0, None
    for line in log:
        verb, _, rest = line.partition(" ")
        if verb == "try":
            attempted = json.loads(rest)
        else:
            assert attempted is not None
            expected, attempted, acknowledged = expected.apply(attempted), None, int(rest)
    allowed = [expected] if attempted is None else [expected, expected.apply(attempted)]
    with Store.open(folder) as store:
        assert store.sequence >= acknowledged
        found = found_in(store)
        assert found in allowed
        check_whole(store)
        live = store.live_generation()
        assert live is None or store.changes_since(live.snapshot).sequence == store.sequence
    for backup in folder.parent.glob(f"{folder.name}-backup-*"):  # whole, or not there
        with Store.open(backup, readonly=True) as store:
            check_whole(store)
        shutil.rmtree(backup)
    return found


def check_whole(store: Store) -> None:
    assert store.verify().damage == ()
    rows = store.rows()
    vectors = np.array([vector(content) for content in store.contents(rows)]).reshape(-1, store.dimension)
    np.testing.assert_array_equal(store.embeddings(rows), vectors)


# ---- kills


def random_kills(forks: Forks, folder: Path, trials: int, *, seed: int = 0) -> dict[str, int]:
    """One collection lives through all of it, so that damage done by one kill may show after a later one."""
    create(folder)
    generator = random.Random(seed)
    expected, acknowledged = Expected(), 0

    def kill(out: Path) -> None:
        lines = 2 * generator.randint(0, 9) + 1
        while not out.exists() or out.read_bytes().count(b"\n") < lines:
            time.sleep(0.001)
        time.sleep(generator.random() * 0.02)

    for number in range(trials):
        status, log = forks.run(
            "crash_writer", [folder, 100_000 * seed + number], folder.with_name("out"), kill=kill
        )
        assert status == -signal.SIGKILL
        expected = check(folder, expected, log)
        acknowledged += sum(line.startswith("ack") for line in log)
    return {"kills": trials, "acknowledged": acknowledged}


def kills_at_calls(
    forks: Forks, folder: Path, scratch: Path, trials: int, *, seed: int = 3
) -> dict[str, int]:
    """A writer dies on entry to calls that change files, evenly spread over its life."""
    create(folder)
    whole = shutil.copytree(folder, scratch / f"whole-{seed}")
    points = forks.calls("crash_writer", [whole, seed, _STEPS], scratch)
    assert {"pwrite64", "unlink"} <= {call for call, _ in points}
    places = np.unique(np.linspace(0, len(points) - 1, trials).astype(int)).tolist()
    for place in places:
        copy = shutil.copytree(folder, scratch / f"killed-{seed}-{place}")
        at = killing(points[place])
        status, log = forks.run("crash_writer", [copy, seed, _STEPS], scratch / "out", strace=at)
        assert status == -signal.SIGKILL, f"{points[place]} was not reached"
        check(copy, Expected(), log)
        shutil.rmtree(copy)
    return {"kills": len(places), "calls": len(points)}


def kills_while_creating(forks: Forks, scratch: Path, trials: int) -> dict[str, int]:
    """There is a whole collection or none, and the name is free or taken accordingly."""
    points = forks.calls("crash_writer", [scratch / "whole"], scratch)
    places = np.unique(np.linspace(0, len(points) - 1, trials).astype(int)).tolist()
    whole = 0
    for place in places:
        folder = scratch / f"creating-{place}" / "papers"
        status, _ = forks.run("crash_writer", [folder], scratch / "out", strace=killing(points[place]))
        assert status == -signal.SIGKILL
        if folder.exists():
            whole += 1
        else:
            create(folder)
        with Store.open(folder) as store:
            assert store.verify().ok
    return {"kills": len(places), "calls": len(points), "whole": whole}


# ---- errors of the disk

# What a call answers in place of what it should do. A short write is a true one: the writer has a limit on
# the size of its files, at which the kernel writes what fits and then refuses.
FAULTS = (
    ("fdatasync", "EIO"),
    ("pwrite64", "EIO"),
    ("pwrite64", "ENOSPC"),
    ("fdatasync", "ENOSPC"),
    ("pwrite64", "short"),
)
_STEPS = 6


def faults(forks: Forks, folder: Path, scratch: Path, trials: int) -> dict[str, int]:
    """A call fails (a write twice in a row): nothing false is acknowledged, and reading goes on.

    After a failed sync nothing is ever acknowledged again; after a full disk the next writes are.
    """
    create(folder)
    whole = shutil.copytree(folder, scratch / "whole")
    calls = forks.calls("fault_writer", [whole, 1 + _STEPS, 0], scratch)
    of_call = {call: [n for name, n in calls if name == call] for call in ("fdatasync", "pwrite64")}
    largest = (whole / "documents.db").stat().st_size
    tally: Counter[str] = Counter()
    for trial in range(trials):
        call, error = FAULTS[trial % len(FAULTS)]
        share = (trial // len(FAULTS) + 0.5) / (trials / len(FAULTS))
        numbers = of_call[call]
        number = numbers[min(int(share * len(numbers)), len(numbers) - 1)]
        when = f"{number}..{number + 1}" if call == "pwrite64" else f"{number}"
        limit = 0
        strace = None
        if error == "short":  # beyond what is there already, so that something is written that is too long
            limit = SMALLEST + int(share * (largest - SMALLEST))
            when = f"{limit}"
        else:
            strace = injecting(call, when, f"error={error}")
        copy = shutil.copytree(folder, scratch / f"fault-{trial}")
        arguments = [copy, 1 + _STEPS, limit]
        status, log = forks.run("fault_writer", arguments, scratch / "out", strace=strace)
        where = f"{call} {error} {when}: {log}"
        assert status == 0, where
        assert "end" in log, where
        verbs = [line.split()[0] for line in log[:-1]]
        codes = {line.split()[1] for line in log if line.startswith(("err", "refused"))}
        assert codes <= {"unavailable", "insufficient_storage"}, where
        tally["not opened"] += "refused" in verbs
        if "err" in verbs:
            tally["short writes"] += error == "short"
            tally["errors"] += 1
            after = verbs[verbs.index("err") :]
            if "insufficient_storage" in codes:
                assert codes == {"insufficient_storage"}, where
                last = len(after) <= 2  # there was no write after the error
                assert last or after[-1] == "ack", f"writes go on when there is space again; {where}"
                tally["recovered"] += 1
            else:
                assert "ack" not in after, f"trusted again; {where}"
                tally["read-only"] += 1
        with Store.open(copy) as store:
            there = {document.id for document in store.list()}
            assert there >= {line.split()[1] for line in log if line.startswith("ack")}, where
            assert store.verify().damage == (), where
        shutil.rmtree(copy)
    return {"faults": trials, **tally}


# ---- flipped bits


def flip(folder: Path, byte: int, bit: int = 0, name: str = "documents.db") -> None:
    with open(folder / name, "r+b") as file:
        file.seek(byte)
        (old,) = file.read(1)
        file.seek(byte)
        file.write(bytes([old ^ (1 << bit)]))


def flips(filled: Path, scratch: Path, trials: int, *, rows: int, seed: int = 3) -> dict[str, int]:
    """Each flip in a closed collection's database is refused or named, or changes nothing that is read."""

    def everything(folder: Path) -> object:
        with Store.open(folder, readonly=True) as store:
            return (
                store.list(limit=1000),
                store.documents(np.arange(1, rows + 2)),
                store.embeddings(np.arange(1, rows + 1)).tobytes(),
                store.snapshot().rows.tolist(),
                store.pending().rows.tolist(),
                store.live_generation(),
                store.models(),
                store.model_history(),
                store.count(),
                store.encoder,
            )

    answer = everything(filled)
    size = (filled / "documents.db").stat().st_size
    generator = np.random.default_rng(seed)
    found = sqlite_found = 0
    for trial in range(trials):
        copy = shutil.copytree(filled, scratch / f"flip-{trial}")
        flip(copy, int(generator.integers(size)), int(generator.integers(8)))
        try:
            with Store.open(copy, readonly=True) as store:
                damaged = not store.verify().ok
        except DsearchError:
            damaged = True
        if damaged:
            found += 1
            sqlite_found += not _sqlite_is_content(copy)
        else:
            assert everything(copy) == answer
        shutil.rmtree(copy)
    return {"flips": trials, "found": found, "SQLite found": sqlite_found}


def flips_in_the_log(folder: Path, scratch: Path, trials: int, *, seed: int = 5) -> dict[str, int]:
    """A flip in the write-ahead log that a kill left never drops an acknowledged write unnoticed.

    `folder` is a copy of an open collection after operations that wrote the documents that it lists.
    """
    names = ("documents.db", "documents.db-wal", "watermark")
    with Store.open(Path(shutil.copytree(folder, scratch / "answer"))) as store:
        sequence, ids = store.sequence, [document.id for document in store.list()]
    size = (folder / "documents.db-wal").stat().st_size
    generator = np.random.default_rng(seed)
    found = silent = 0
    for trial in range(trials):
        copy = scratch / f"log-{trial}"
        copy.mkdir()
        for name in names:
            shutil.copy(folder / name, copy / name)
        flip(copy, int(generator.integers(size)), int(generator.integers(8)), "documents.db-wal")
        try:
            with Store.open(copy) as store:
                assert store.sequence == sequence
                assert store.verify().ok
                assert [document.id for document in store.list()] == ids
        except CorruptData:
            found += 1
            silent += _sqlite_is_content(copy)
        shutil.rmtree(copy)
    return {"flips": trials, "found": found, "SQLite found": found - silent}


def _sqlite_is_content(folder: Path) -> bool:
    connection = sqlite3.connect(folder / "documents.db")
    try:
        return connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    except (sqlite3.DatabaseError, UnicodeDecodeError):  # a name in its finding may be what was hit
        return False
    finally:
        connection.close()

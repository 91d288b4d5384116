"""Trials that kill, break or flip: the tests run a few, scripts/soak_store.py as many as a night takes.

Each function runs `trials` of them, raises AssertionError when a promise is broken, and returns what it saw.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from crash_writer import DIMENSION, vector

from dsearch.errors import CorruptData, DsearchError
from dsearch.store import Store

PYTHON = [sys.executable, "-B"]  # no byte code is written, so every run makes the same calls
HERE = Path(__file__).parent
WRITER = [*PYTHON, str(HERE / "crash_writer.py")]
STRACE = ["strace", "-f", "-qq"]
CALLS = "pwrite64,fsync,fdatasync,ftruncate,unlink,rename,mkdir"


class Expected:
    """What the collection must hold: ids with their texts, and the live model's text."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.model = ""

    def apply(self, operation: dict[str, Any]) -> Expected:
        after = Expected()
        after.texts, after.model = dict(self.texts), self.model
        for id in operation["ids"]:
            if operation["kind"] in ("upsert", "text"):
                after.texts[id] = f"{id} {operation['text']}"
            elif operation["kind"] in ("delete", "delete matching"):
                after.texts.pop(id, None)
        if operation["kind"] == "promote":
            after.model = operation["text"]
        return after

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expected) and (self.texts, self.model) == (other.texts, other.model)

    __hash__ = None  # type: ignore[assignment]


def create(folder: Path) -> None:
    Store.create(folder, name="papers", encoder={}, dimension=DIMENSION).close()


def found_in(store: Store) -> Expected:
    found = Expected()
    found.texts = {document.id: document.text for document in store.list(limit=1000)}
    found.model = store.model(store.live_model()).record.get("text", "")
    return found


def lines_of(output: bytes) -> list[str]:
    """The whole lines of what a killed process printed."""
    return [line.decode().rstrip("\n") for line in output.splitlines(keepends=True) if line.endswith(b"\n")]


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
    vectors = np.array([vector(content) for content in store.contents(rows)]).reshape(-1, DIMENSION)
    np.testing.assert_array_equal(store.embeddings(rows), vectors)


# ---- kills


def random_kills(folder: Path, trials: int) -> dict[str, int]:
    """One collection lives through all of it, so that damage done by one kill may show after a later one."""
    create(folder)
    generator = random.Random(11)
    expected, acknowledged = Expected(), 0
    for kill in range(trials):
        writer = subprocess.Popen([*WRITER, str(folder), str(kill)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        # Wait for the first line at least: before it there is nothing but the start of Python.
        begun = b"".join(writer.stdout.readline() for _ in range(2 * generator.randint(0, 9) + 1))
        time.sleep(generator.random() * 0.02)
        writer.kill()
        log = lines_of(begun + writer.communicate()[0])
        assert writer.returncode == -signal.SIGKILL
        expected = check(folder, expected, log)
        acknowledged += sum(line.startswith("ack") for line in log)
    return {"kills": trials, "acknowledged": acknowledged}


def kills_at_calls(folder: Path, scratch: Path, trials: int, *, seed: int = 3) -> dict[str, int]:
    """A writer dies on entry to calls that change files, evenly spread over its life."""
    create(folder)
    program = [str(HERE / "crash_writer.py")]
    points = calls_of(
        [*program, str(shutil.copytree(folder, scratch / f"whole-{seed}")), str(seed), "6"], scratch
    )
    assert {"pwrite64", "unlink"} <= {call for call, _ in points}
    places = np.unique(np.linspace(0, len(points) - 1, trials).astype(int)).tolist()
    for place in places:
        copy = shutil.copytree(folder, scratch / f"killed-{seed}-{place}")
        output = killed_at(points[place], [*program, str(copy), str(seed), "6"])
        check(copy, Expected(), lines_of(output))
        shutil.rmtree(copy)
    return {"kills": len(places), "calls": len(points)}


def kills_while_creating(scratch: Path, trials: int) -> dict[str, int]:
    """There is a whole collection or none, and the name is free or taken accordingly."""
    create_it = "Store.create(Path(sys.argv[1]), name='papers', encoder={}, dimension=4)"
    code = f"import sys; from pathlib import Path; from dsearch.store import Store; {create_it}"
    points = calls_of(["-c", code, str(scratch / "whole")], scratch)
    places = np.unique(np.linspace(0, len(points) - 1, trials).astype(int)).tolist()
    whole = 0
    for place in places:
        folder = scratch / f"creating-{place}" / "papers"
        killed_at(points[place], ["-c", code, str(folder)])
        if folder.exists():
            whole += 1
        else:
            Store.create(folder, name="papers", encoder={}, dimension=4).close()
        with Store.open(folder) as store:
            assert store.verify().ok
    return {"kills": len(places), "whole": whole}


def calls_of(program: list[str], scratch: Path, calls: str = CALLS) -> list[tuple[str, int]]:
    """The calls by which a Python program changes files, in order: (name, how many of that name so far)."""
    trace = scratch / "trace"
    command = [*STRACE, "-o", str(trace), "-e", f"trace={calls}", *PYTHON, *program]
    subprocess.run(command, check=True, stdout=subprocess.PIPE)
    seen: Counter[str] = Counter()
    points: list[tuple[str, int]] = []
    for call in re.findall(r"^\d+ +(\w+)\(", trace.read_text(errors="replace"), re.MULTILINE):
        seen[call] += 1
        points.append((call, seen[call]))
    return points


def killed_at(point: tuple[str, int], program: list[str]) -> bytes:
    """Run the program until it enters that call, which it never does; returns what it had printed."""
    call, number = point
    inject = ["-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={number}"]
    done = subprocess.run([*STRACE, *inject, *PYTHON, *program], capture_output=True, check=False)
    assert done.returncode != 0, f"{call} {number} was not reached"
    return done.stdout


# ---- errors of the disk

FAULTS = (("fdatasync", "EIO"), ("pwrite64", "EIO"), ("pwrite64", "ENOSPC"), ("fdatasync", "ENOSPC"))
_STEPS = 8


def faults(folder: Path, scratch: Path, trials: int) -> dict[str, int]:
    """A call fails (a write twice in a row): nothing false is acknowledged, and reading goes on.

    After a failed sync nothing is ever acknowledged again; after a full disk the next writes are.
    """
    create(folder)
    program = [str(HERE / "fault_writer.py")]
    calls = calls_of([*program, str(shutil.copytree(folder, scratch / "whole")), str(_STEPS)], scratch)
    of_call = {call: [n for name, n in calls if name == call] for call in ("fdatasync", "pwrite64")}
    tally: Counter[str] = Counter()
    for trial in range(trials):
        call, error = FAULTS[trial % len(FAULTS)]
        numbers = of_call[call]
        share = (trial // len(FAULTS) + 0.5) / (trials / len(FAULTS))
        number = numbers[min(int(share * len(numbers)), len(numbers) - 1)]
        when = f"{number}..{number + 1}" if call == "pwrite64" else f"{number}"
        copy = shutil.copytree(folder, scratch / f"fault-{trial}")
        inject = ["-o", "/dev/null", "-e", f"inject={call}:error={error}:when={when}"]
        command = [*STRACE, *inject, *PYTHON, *program, str(copy), str(_STEPS)]
        done = subprocess.run(command, capture_output=True, check=False)
        log = lines_of(done.stdout)
        assert "end" in log, f"{call} {error} {when}: {done.stderr.decode()[-500:]}"
        verbs = [line.split()[0] for line in log[:-1]]
        codes = {line.split()[1] for line in log if line.startswith(("err", "refused"))}
        assert codes <= {"unavailable", "insufficient_storage"}, codes
        tally["not opened"] += "refused" in verbs
        if "err" in verbs:
            tally["errors"] += 1
            after = verbs[verbs.index("err") :]
            if "insufficient_storage" in codes:
                assert codes == {"insufficient_storage"}
                last = len(after) <= 2  # there was no write after the error
                assert last or after[-1] == "ack", "writes go on when there is space again"
                tally["recovered"] += 1
            else:
                assert "ack" not in after, f"{call} {error} {when}: trusted again"
                tally["read-only"] += 1
        with Store.open(copy) as store:
            there = {document.id for document in store.list()}
            assert there >= {line.split()[1] for line in log if line.startswith("ack")}
            assert store.verify().damage == ()
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

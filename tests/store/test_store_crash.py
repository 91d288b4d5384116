"""kill -9 at any moment: what was acknowledged is there, the rest is there whole or not at all."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crash_writer import DIMENSION, vector

from dsearch.errors import CorruptData
from dsearch.store import Store

PYTHON = [sys.executable, "-B"]  # no byte code is written, so every run makes the same calls
WRITER = [*PYTHON, str(Path(__file__).with_name("crash_writer.py"))]

STRACE = ["strace", "-f", "-qq"]
CALLS = "pwrite64,fsync,fdatasync,ftruncate,unlink,rename,mkdir"

pytestmark = pytest.mark.crash
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace chooses the call to die in")


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
            elif operation["kind"] == "delete":
                after.texts.pop(id, None)
        if operation["kind"] == "promote":
            after.model = operation["text"]
        return after

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expected) and (self.texts, self.model) == (other.texts, other.model)

    __hash__ = None  # type: ignore[assignment]


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
        assert store.verify().damage == ()
        rows = store.rows()
        vectors = np.array([vector(content) for content in store.contents(rows)]).reshape(-1, DIMENSION)
        np.testing.assert_array_equal(store.embeddings(rows), vectors)
    return found


def create(folder: Path) -> None:
    Store.create(folder, name="papers", encoder={}, dimension=DIMENSION).close()


def test_killed_at_random_moments_again_and_again(folder):
    """One collection lives through all of it, so that damage done by one kill may show after a later one."""
    create(folder)
    generator = random.Random(11)
    expected, acknowledged = Expected(), 0
    for kill in range(21):
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
    assert acknowledged > 50


@needs_strace
def test_killed_on_entry_to_calls_that_change_files(folder, tmp_path):
    """Where random moments seldom fall: between a commit and its mark, between a write and its sync."""
    create(folder)
    program = [str(Path(__file__).with_name("crash_writer.py"))]
    points = calls_of([*program, str(shutil.copytree(folder, tmp_path / "whole")), "3", "6"], tmp_path)
    assert {"pwrite64", "unlink"} <= {call for call, _ in points}
    for place in np.linspace(0, len(points) - 1, 11).astype(int).tolist():
        copy = shutil.copytree(folder, tmp_path / f"killed-{place}")
        output = killed_at(points[place], [*program, str(copy), "3", "6"])
        check(copy, Expected(), lines_of(output))


@needs_strace
def test_nothing_is_acknowledged_before_log_and_watermark_are_synced(folder, tmp_path):
    """A kill does not lose what the kernel has, a power cut does: so the order of the calls is looked at."""
    create(folder)
    trace = tmp_path / "trace"
    command = [*STRACE, "-y", "-o", str(trace), "-e", "trace=pwrite64,fsync,fdatasync,write", *WRITER]
    subprocess.run([*command, str(folder), "3", "12"], check=True, stdout=subprocess.PIPE)
    acknowledged = 0
    dirty: set[str] = set()
    written: list[str] = []
    for line in trace.read_text().splitlines():
        found = re.search(r"(\w+)\(\d+<([^>]*)>(.*)", line)
        if found is None:
            continue
        call, name, rest = found[1], Path(found[2]).name, found[3]
        if call == "pwrite64" and name in ("documents.db-wal", "watermark"):
            if name == "watermark":
                assert "documents.db-wal" not in dirty  # committed before it is marked
            dirty.add(name)
            written.append(name)
        elif call in ("fsync", "fdatasync"):
            dirty.discard(name)
        elif call == "write" and '"ack ' in rest:
            assert not dirty
            acknowledged += {"documents.db-wal", "watermark"} <= set(written)
            written.clear()
    assert acknowledged >= 8  # the others changed nothing, such as the deletion of what is not there


@needs_strace
def test_killed_while_creating_there_is_a_whole_collection_or_none(tmp_path):
    """And the name is free or taken accordingly."""
    create_it = "Store.create(Path(sys.argv[1]), name='papers', encoder={}, dimension=4)"
    code = f"import sys; from pathlib import Path; from dsearch.store import Store; {create_it}"
    points = calls_of(["-c", code, str(tmp_path / "whole")], tmp_path)
    whole = 0
    for place in np.linspace(0, len(points) - 1, 8).astype(int).tolist():
        folder = tmp_path / f"killed-{place}" / "papers"
        killed_at(points[place], ["-c", code, str(folder)])
        if folder.exists():
            whole += 1
        else:
            Store.create(folder, name="papers", encoder={}, dimension=4).close()
        with Store.open(folder) as store:
            assert store.verify().ok
    assert 0 < whole < 8


def calls_of(program: list[str], tmp_path: Path) -> list[tuple[str, int]]:
    """The calls by which a Python program changes files, in order: (name, how many of that name so far)."""
    trace = tmp_path / "trace"
    command = [*STRACE, "-o", str(trace), "-e", f"trace={CALLS}", *PYTHON, *program]
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


def test_the_check_can_fail(folder, tmp_path):
    """Vacuity: a log that is thrown away by the kill, as if it had never been synced, must be found out."""
    create(folder)
    before = shutil.copytree(folder, tmp_path / "before")
    log = lines_of(
        subprocess.run([*WRITER, str(folder), "3", "4"], check=True, stdout=subprocess.PIPE).stdout
    )
    check(folder, Expected(), log)
    with pytest.raises(AssertionError):
        check(folder, Expected(), log[2:])  # as if an operation showed that was never begun
    with pytest.raises(AssertionError):
        check(folder, Expected(), [*log, log[0], "ack 99"])  # as if an acknowledged one were lost
    shutil.copy(folder / "watermark", before / "watermark")
    with pytest.raises(CorruptData, match="acknowledged writes are missing"):
        check(before, Expected(), log)

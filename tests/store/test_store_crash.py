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

WRITER = [sys.executable, str(Path(__file__).with_name("crash_writer.py"))]

pytestmark = pytest.mark.crash


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
    for kill in range(24):
        writer = subprocess.Popen([*WRITER, str(folder), str(kill)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        # Wait for the first line at least: before it there is nothing but the start of Python.
        begun = b"".join(writer.stdout.readline() for _ in range(2 * generator.randint(0, 12) + 1))
        time.sleep(generator.random() * 0.02)
        writer.kill()
        log = lines_of(begun + writer.communicate()[0])
        assert writer.returncode == -signal.SIGKILL
        expected = check(folder, expected, log)
        acknowledged += sum(line.startswith("ack") for line in log)
    assert acknowledged > 50


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace chooses the system call to die in")
def test_killed_on_entry_to_calls_that_change_files(folder, tmp_path):
    """Where random moments seldom fall: between a commit and its mark, between a write and its sync."""
    create(folder)
    whole = shutil.copytree(folder, tmp_path / "whole")
    trace = tmp_path / "trace"
    strace = ["strace", "-f", "-qq"]
    run = [*WRITER, str(whole), "3", "6"]
    traced = [*strace, "-o", str(trace), "-e", "trace=pwrite64,fsync,fdatasync,ftruncate,unlink", *run]
    subprocess.run(traced, check=True, stdout=subprocess.PIPE)
    seen: Counter[str] = Counter()
    points: list[tuple[str, int]] = []
    for call in re.findall(r"(\w+)\(", trace.read_text()):
        seen[call] += 1
        points.append((call, seen[call]))
    sample = np.linspace(0, len(points) - 1, 14).astype(int).tolist()
    assert {"pwrite64", "unlink"} <= seen.keys()
    for call, number in [points[place] for place in sample]:
        copy = shutil.copytree(folder, tmp_path / f"{call}-{number}")
        inject = ["-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={number}"]
        command = [*strace, *inject, *WRITER, str(copy), "3", "6"]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode != 0, f"{call} {number} was not reached"
        check(copy, Expected(), lines_of(done.stdout))


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

"""kill -9 at any moment: what was acknowledged is there, the rest is there whole or not at all.

The trials are in store_trials.py; scripts/trials/soak_store.py runs them by the thousand.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.forked import Forks
from support.store.crash_writer import create
from support.store.store_trials import (
    STRACE,
    WRITER,
    faults,
    forks,
    kills_at_calls,
    kills_while_creating,
    random_kills,
)

pytestmark = pytest.mark.crash
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace chooses the call to die in")


@pytest.fixture(scope="module")
def forked() -> Iterator[Forks]:
    with forks() as ready:
        yield ready


def test_killed_at_random_moments_again_and_again(forked, folder):
    folder.parent.mkdir()
    assert random_kills(forked, folder, 12)["acknowledged"] > 25


@needs_strace
def test_killed_on_entry_to_calls_that_change_files(forked, folder, tmp_path):
    """Where random moments seldom fall: between a commit and its mark, between a write and its sync."""
    kills_at_calls(forked, folder, tmp_path, 24)


@needs_strace
def test_killed_while_creating_there_is_a_whole_collection_or_none(forked, tmp_path):
    assert 0 < kills_while_creating(forked, tmp_path, 12)["whole"] < 12


@needs_strace
def test_a_failing_disk_is_never_trusted_again_and_a_full_one_is_when_it_has_space(forked, folder, tmp_path):
    seen = faults(forked, folder, tmp_path, 20)
    assert seen["read-only"] > 0
    assert seen["recovered"] > 0
    assert seen["short writes"] > 0


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

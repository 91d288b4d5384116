"""Indexing killed with SIGKILL at any stage goes on where it stopped, and publishes once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.fakes import HashingEncoder
from support.paths import SUPPORT

from dsearch.engine import SearchEngine

SCRIPT = SUPPORT / "engine" / "interrupted_indexing.py"
DOCUMENTS = 2000

pytestmark = pytest.mark.crash


def start(home: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), str(home), str(DOCUMENTS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("stage", ["read 1024", "encode 512", "encode 2000", "keys 2000", "digests 3"])
def test_killed_indexing_goes_on(tmp_path: Path, stage: str) -> None:
    process = start(tmp_path)
    assert process.stdout
    for line in process.stdout:
        if line.strip() == stage:
            process.kill()
            break
    process.wait()
    with SearchEngine(tmp_path, readonly=True, encoder=HashingEncoder) as engine:
        before = engine.collection("big")
        assert before.describe()["generation"] == 1  # nothing half-built shows
        encoded = before.describe()["documents"] - before.describe()["pending"]
        # What was encoded before the kill can be found even now: it is searched beside the old generation.
        assert len(before.search("text", limit=1000).hits) == min(encoded, 1000)
    again = start(tmp_path)
    out, _ = again.communicate(timeout=120)
    assert again.returncode == 0
    newly = int(out.splitlines()[-1].split()[1])
    assert newly == DOCUMENTS - encoded
    if stage != "read 1024":
        assert encoded >= 512
    with SearchEngine(tmp_path, encoder=HashingEncoder) as engine:
        collection = engine.collection("big")
        assert collection.describe()["documents"] == DOCUMENTS
        assert collection.describe()["pending"] == 0
        assert not list((tmp_path / "big" / "generations").glob(".*"))
        assert collection.search("text number 1234", limit=1).hits[0].id == "1234"
        assert collection.store.verify().ok

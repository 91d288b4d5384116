"""Indexing killed with SIGKILL at any stage goes on where it stopped, and publishes once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fakes import HashingEncoder
from support.forked import Forks, said
from support.paths import SUPPORT

from dsearch.engine import SearchEngine

PROGRAM = "interrupted_indexing"
DOCUMENTS = 2000

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks(SUPPORT / "engine", PROGRAM) as ready:
        yield ready


@pytest.mark.parametrize("stage", ["read 1024", "encode 512", "encode 2000", "keys 2000", "digests 3"])
def test_killed_indexing_goes_on(forks: Forks, tmp_path: Path, stage: str) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    forks.run(PROGRAM, [home, DOCUMENTS, stage], out, kill=said(stage))
    with SearchEngine(home, readonly=True, encoder=HashingEncoder) as engine:
        before = engine.collection("big")
        assert before.describe().generation == 1  # nothing half-built shows
        encoded = before.describe().documents - before.describe().pending
        # What was encoded before the kill can be found even now: it is searched beside the old generation.
        assert len(before.search("text", limit=1000).hits) == min(encoded, 1000)
    status, lines = forks.run(PROGRAM, [home, DOCUMENTS], out)
    assert status == 0, lines
    newly = int(lines[-1].split()[1])
    assert newly == DOCUMENTS - encoded
    if stage != "read 1024":
        assert encoded >= 512
    with SearchEngine(home, encoder=HashingEncoder) as engine:
        collection = engine.collection("big")
        assert collection.describe().documents == DOCUMENTS
        assert collection.describe().pending == 0
        assert not list((home / "big" / "generations").glob(".*"))
        assert collection.search("text number 1234", limit=1).hits[0].id == "1234"
        assert collection.store.verify().ok

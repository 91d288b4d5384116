"""The first state of a collection may be read while others write: no write is missing from it."""

from __future__ import annotations

import threading

import pytest
from support.fakes import HashingEncoder
from support.patience import LATEST_S

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.state.snapshots import Snapshots


def test_a_write_beside_the_first_reading_shows(
    engine: SearchEngine, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = engine.home.path
    engine.close()
    with SearchEngine(home, encoder=HashingEncoder) as again:
        opened = again.collection("food")
        read, written = threading.Event(), threading.Event()
        load = Snapshots._load

        def slow(self: Snapshots) -> object:
            state = load(self)
            read.set()
            written.wait(2)  # the writer waits for this reading, or is done by then
            return state

        monkeypatch.setattr(Snapshots, "_load", slow)
        reading = threading.Thread(target=lambda: opened.snapshot)
        reading.start()
        assert read.wait(LATEST_S)
        writing = threading.Thread(target=lambda: (opened.delete(["d3"]), written.set()))
        writing.start()
        for thread in (writing, reading):
            thread.join(LATEST_S)
        assert "d3" not in {hit.id for hit in opened.search("apple", limit=20).hits}

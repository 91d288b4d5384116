"""A closed engine leaves no file of its home open."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from support.fakes import HashingEncoder

from dsearch.engine import SearchEngine
from dsearch.engine.feedback import impression_of
from dsearch.store import Event
from dsearch.types import Document


def open_below(folder: Path) -> list[str]:
    """Files below a folder that this process holds open."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # closed since
            continue
    return sorted(link for link in links if link.startswith(f"{folder}{os.sep}"))


def test_no_file_of_the_home_stays_open(tmp_path: Path, documents: list[Document]) -> None:
    home, encoder = tmp_path / "home", HashingEncoder()
    for readonly in (False, True):
        with SearchEngine(home, encoder=lambda: encoder, readonly=readonly) as engine:
            if not readonly:
                engine.create("food").ingest(documents, second_stage=True)
            food = engine.collection("food")
            result = food.search("apple")
            food.attend(["apple"])
            if not readonly:
                food.upsert([Document("new", "apple")])
                page = impression_of(result, "q1")
                event = Event("e1", "q1", "", "", "click", result.hits[0].id, 1, 1.0, 1.0)
                food.feedback.record([page], [event])
                food.calibrations.of("v0")
            assert len(list(food.feedback.pages())) == 1
            assert open_below(home) != []
        assert [path for path in open_below(home) if ".db" in path] == []  # while it is there, too
        del engine, food
        gc.collect()
        assert open_below(home) == []

"""The golden collection in index/example opens for ever and answers what it answered when it was written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.fakes import HashingEncoder
from support.paths import EXAMPLE

from dsearch.engine import SearchEngine
from dsearch.types import Document


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy: opening a collection for writing changes its files."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "home"))


@pytest.mark.parametrize("readonly", [True, False])
def test_it_answers_what_it_answered(home: Path, readonly: bool) -> None:
    expected = json.loads((home / "expected.json").read_text())
    with SearchEngine(home, readonly=readonly, encoder=lambda: HashingEncoder(8)) as engine:
        collection = engine.collection("golden")
        assert collection.store.verify().ok
        for asked in expected:
            found = collection.search(asked["query"], limit=20, mode=asked["mode"], model=asked["model"]).hits
            assert [hit.id for hit in found] == [hit["id"] for hit in asked["hits"]]
            for hit, before in zip(found, asked["hits"], strict=True):
                assert hit.score == pytest.approx(before["score"], abs=1e-5)
                assert hit.weight == pytest.approx(before["weight"], abs=1e-5)
                assert (hit.title, hit.text, hit.metadata) == (
                    before["title"],
                    before["text"],
                    before["metadata"],
                )


def test_it_can_be_written_on(home: Path) -> None:
    with SearchEngine(home, encoder=lambda: HashingEncoder(8)) as engine:
        collection = engine.collection("golden")
        collection.upsert([Document(id="new", text="fresh figs")])
        collection.refresh()
        assert collection.search("fresh figs").hits[0].id == "new"
        assert collection.store.get("late").value == 2.5

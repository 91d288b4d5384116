"""Collections whose live version has a part that a later release may drop open and answer as when written.

Release 0.3.0 wrote index/retired. In `overlay`, v1 is a plain head; v2 and v3 (live) have changed keys of
single documents, each trained from the one before. In `fusion-gate`, v1 (live) has a keyword weight of the
query.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.fakes import HashingEncoder
from support.paths import RETIRED

from dsearch.engine import Collection, SearchEngine
from dsearch.types import Document

EXPECTED = json.loads((RETIRED / "expected.json").read_text())
LIVE = {"overlay": "v3", "fusion-gate": "v1"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy: opening a collection for writing changes its files."""
    return Path(shutil.copytree(RETIRED, tmp_path / "home"))


def require_answers(collection: Collection, version: str, model: str | None) -> None:
    """Compare the answers of `model` with those that `version` gave when the collection was written."""
    for before in EXPECTED[collection.name][version]:
        hits = collection.search(before["query"], limit=5, mode=before["mode"], model=model).hits
        assert [hit.id for hit in hits] == [id for id, _, _ in before["hits"]]
        for hit, (_, score, weight) in zip(hits, before["hits"], strict=True):
            assert (hit.score, hit.weight) == pytest.approx((score, weight), abs=1e-5)


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("name", sorted(LIVE))
def test_it_opens_and_answers(home: Path, name: str, readonly: bool) -> None:
    with SearchEngine(home, readonly=readonly, encoder=lambda: HashingEncoder(8)) as engine:
        collection = engine.collection(name)
        assert collection.store.verify().ok
        assert collection.store.live_model() == LIVE[name]
        require_answers(collection, LIVE[name], None)
        for version in EXPECTED[name]:
            require_answers(collection, version, version)


@pytest.mark.parametrize("name", sorted(LIVE))
def test_it_can_be_written_on(home: Path, name: str) -> None:
    with SearchEngine(home, encoder=lambda: HashingEncoder(8)) as engine:
        collection = engine.collection(name)
        collection.upsert([Document(id="new", text="fresh figs")])
        collection.refresh()
        assert collection.search("fresh figs").hits[0].id == "new"

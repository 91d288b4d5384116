"""Versions of earlier releases that answered predictions and no searches are listed, and never live again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.fakes import HashingEncoder
from support.paths import PURPOSES

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine, calls
from dsearch.errors import Gone

EXPECTED = json.loads((PURPOSES / "expected.json").read_text())
QUERY = "cheese and bread"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Collections of a release in which searches and predictions had one log; see its expected.json.

    v1 is for searches; v2 learned a field and was promoted, v3 was made from it. In `replaced`, v1 was
    promoted again.
    """
    return Path(shutil.copytree(PURPOSES, tmp_path / "golden"))


def opened(home: Path, *, readonly: bool = False) -> SearchEngine:
    return SearchEngine(home, readonly=readonly, encoder=lambda: HashingEncoder(8))


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("name", ["live", "replaced"])
def test_a_golden_home_answers_by_the_version_for_searches(home: Path, name: str, readonly: bool) -> None:
    expected = EXPECTED[name]
    with opened(home, readonly=readonly) as engine:
        collection = engine.collection(name)
        assert collection.store.verify().ok
        found = collection.search(QUERY, limit=5)
        assert found.stamp.model == collection.live_model == "v1"
        wanted = [[id, pytest.approx(score, abs=1e-5)] for id, score in expected["search"]["v1"]]
        assert [[hit.id, hit.score] for hit in found.hits] == wanted
        predicted = collection.predict([QUERY], field="price")
        assert predicted.stamp.model == "v1"
        assert predicted.predictions[0].mean == pytest.approx(expected["predict"]["v1"], abs=1e-5)
        listed = {
            one.version: (one.live, one.problem is None) for one in calls.list_models(collection).models
        }
        assert listed == {"v0": (False, True), "v1": (True, True), "v2": (False, False), "v3": (False, False)}


def test_such_versions_are_refused_by_every_call(home: Path) -> None:
    with opened(home) as engine:
        collection = engine.collection("live")
        for version in ("v2", "v3"):
            for call in (
                lambda of: collection.search(QUERY, model=of),
                lambda of: collection.predict([QUERY], field="price", model=of),
                lambda of: collection.promote(of),
                lambda of: collection.store.promote(of),
                lambda of: collection.add_model(Head(32), {}, parent=of),
            ):
                with pytest.raises(Gone, match=f"model {version}"):
                    call(version)
        assert (collection.live_model, collection.store.verify().ok) == ("v1", True)


def test_the_way_back_passes_them_over(home: Path) -> None:
    with opened(home) as engine:
        collection = engine.collection("replaced")
        assert collection.store.model_history() == ["v1", "v1"]
        assert collection.rollback() == "v0"
        collection.promote("v1")
        assert collection.rollback() == "v0"


def test_deleting_one_leaves_its_children_what_they_are(home: Path) -> None:
    with opened(home) as engine:
        collection = engine.collection("live")
        collection.delete_model("v2")
        assert collection.store.model("v3").parent == "v0"
        with pytest.raises(Gone, match="model v3"):
            collection.promote("v3")
        assert collection.store.verify().ok
    with opened(home, readonly=True) as engine:
        assert engine.collection("live").live_model == "v1"


def test_a_backup_with_both_pointers_is_restored(home: Path, tmp_path: Path) -> None:
    with opened(home) as engine:
        engine.backup("live", tmp_path / "backup")
    with opened(tmp_path / "empty") as engine:
        collection: Collection = engine.restore(tmp_path / "backup")
        assert collection.live_model == "v1"
        assert [model.version for model in collection.store.models()] == ["v1", "v2", "v3"]

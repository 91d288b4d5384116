"""A version for predictions answers no searches, whatever is promoted, rolled back or deleted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from support.fakes import HashingEncoder
from support.paths import PURPOSES

from dsearch.attention.retrieval.head import Head
from dsearch.client import LocalEngine
from dsearch.engine import Collection, SearchEngine, calls
from dsearch.errors import Conflict, InvalidRequest
from dsearch.store.records import AS_SEARCH
from dsearch.types import Purpose

EXPECTED = json.loads((PURPOSES / "expected.json").read_text())
QUERY = "cheese and bread"


def moved(seed: int = 0) -> Head:
    head = Head(32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.query_delta += 0.3 * torch.randn(head.query_delta.shape, generator=generator)
    return head


@pytest.fixture
def versions(collection: Collection) -> Collection:
    """v1 for searches, v2 and v3 for predictions, v4 made from v3."""
    collection.add_model(moved(1), {"scope": "head"})
    collection.add_model(moved(2), {"purpose": "predict"})
    collection.add_model(moved(3), {"scope": "head", "objective": "value", "purpose": "predict"})
    collection.add_model(moved(4), {"scope": "uploaded"}, parent="v3")
    return collection


def answering(collection: Collection) -> dict[str, str]:
    searched = collection.search("apple").stamp.model
    return {
        "search": searched,
        "attend": collection.attend(["apple"]).stamp.model,
        "predict": collection.predict(["apple"], field="price").stamp.model,
    }


def test_what_was_trained_for_values_never_changes_search(versions: Collection) -> None:
    versions.promote("v1")
    before = versions.search("apple pie", limit=20).hits
    for version in ("v2", "v3", "v4"):
        assert versions.promote(version) == "predict"
        assert answering(versions) == {"search": "v1", "attend": "v1", "predict": version}
        with pytest.raises(Conflict, match=f"model {version} learned to predict a field, or was made from"):
            versions.promote(version, "search")
    assert versions.search("apple pie", limit=20).hits == before
    assert versions.attend(["apple"], purpose="predict").stamp.model == "v4"
    assert versions.predict(["apple"], field="price", purpose="search").stamp.model == "v1"
    assert versions.store.verify().ok


def test_predictions_follow_search_until_they_have_a_version(versions: Collection) -> None:
    assert answering(versions)["predict"] == "v0"
    versions.promote("v1")
    assert answering(versions)["predict"] == "v1"
    versions.promote("v2")
    versions.promote("v0")
    assert answering(versions) == {"search": "v0", "attend": "v0", "predict": "v2"}
    versions.promote("v1", "predict")  # one for searches may answer predictions
    assert answering(versions)["predict"] == "v1"


def test_each_purpose_has_its_own_way_back(versions: Collection) -> None:
    for version in ("v1", "v2", "v3"):
        versions.promote(version)
    assert [versions.rollback("predict"), versions.rollback("predict")] == ["v2", "v1"]
    assert versions.store.model_history("predict") == ["as search", "v2", "v3", "v2"]
    versions.promote("v0")
    assert answering(versions)["predict"] == "v0"  # it follows again
    with pytest.raises(Conflict, match="the version for searches answers, and nothing predicted before it"):
        versions.rollback("predict")


def test_one_that_predicts_is_not_deleted_and_a_line_goes_on_without_its_middle(
    versions: Collection,
) -> None:
    versions.promote("v4")
    with pytest.raises(Conflict, match="model v4 answers predictions now"):
        versions.delete_model("v4")
    versions.delete_model("v3")  # the parent of v4
    model = versions.store.model("v4")
    assert (model.parent, model.record["purpose"]) == ("v0", "predict")
    assert versions.store.purpose_of("v4") == "predict"
    assert answering(versions)["predict"] == "v4"
    assert versions.store.verify().ok
    with pytest.raises(Conflict, match="v4 learned to predict"):
        versions.promote("v4", "search")


def test_calls_name_purposes(versions: Collection) -> None:
    assert calls.promote(versions, "v2").purpose == "predict"
    listed = calls.list_models(versions)
    assert (listed.live, listed.predict) == ("v0", "v2")
    found = {one.version: (one.purpose, one.live) for one in listed.models}
    assert found == {
        "v0": ("search", True),
        "v1": ("search", False),
        "v2": ("predict", True),
        "v3": ("predict", False),
        "v4": ("predict", False),
    }
    assert versions.describe().predict_model == "v2"
    back = calls.rollback(versions, "predict")
    assert (back.model, back.previous, back.purpose) == ("v0", "v2", "predict")
    with pytest.raises(InvalidRequest, match="purpose='both'; use one of search, predict"):
        versions.add_model(moved(), {"purpose": "both"})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Collections of a release in which searches and predictions had one log; see its expected.json.

    v1 is for searches; v2 learned a field and was promoted, v3 was made from it. In `replaced`, v1 was
    promoted again.
    """
    return Path(shutil.copytree(PURPOSES, tmp_path / "golden"))


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("name", ["live", "replaced"])
def test_a_golden_home_searches_by_what_was_trained_for_searches(
    home: Path, name: str, readonly: bool
) -> None:
    expected = EXPECTED[name]
    with SearchEngine(home, readonly=readonly, encoder=lambda: HashingEncoder(8)) as engine:
        collection = engine.collection(name)
        assert collection.store.verify().ok
        found = collection.search(QUERY, limit=5)
        assert found.stamp.model == "v1"
        assert [[hit.id, pytest.approx(hit.score, abs=1e-5)] for hit in found.hits] == expected["search"][
            "v1"
        ]
        predicted = collection.predict([QUERY], field="price")
        assert predicted.stamp.model == expected["predicted"]
        mean = expected["predict"][expected["predicted"]]
        assert predicted.predictions[0].mean == pytest.approx(mean, abs=1e-5)
        purposes: dict[str, Purpose] = {f"v{n}": collection.store.purpose_of(f"v{n}") for n in range(4)}
        assert purposes == {"v0": "search", "v1": "search", "v2": "predict", "v3": "predict"}


def test_a_golden_home_keeps_its_predictions_when_a_search_is_promoted(home: Path) -> None:
    with SearchEngine(home, encoder=lambda: HashingEncoder(8)) as engine:
        collection = engine.collection("live")
        collection.promote("v0")
        assert (collection.live_model, collection.answering("predict")) == ("v0", "v2")
        assert collection.store.model_history("predict") == ["v2", "v2"]
        assert collection.rollback("predict") == "v0"
        assert collection.store.verify().ok
        collection.delete_model("v2")
        with pytest.raises(Conflict, match="v3 learned"):
            collection.promote("v3", "search")


def test_local_client_trains_for_predictions_alone(home: Path) -> None:
    with SearchEngine(home, encoder=lambda: HashingEncoder(8)) as engine:
        client = LocalEngine(engine)
        task = client.train("replaced", objective="value", field="price", accept=True, epochs=1)
        assert task.result is not None, task.problem
        assert client.models("replaced").predict == task.result["model"]
        assert client.models("replaced").live == "v1"
        assert client.rollback("replaced", "predict").model == "v1"


def test_predictions_that_follow_searches_already_stay_as_they_are(versions: Collection) -> None:
    """No operation is written, and no way back to the same is added."""
    before = versions.store.sequence
    versions.promote(AS_SEARCH, "predict")
    assert versions.store.sequence == before
    versions.promote("v2")
    versions.promote(AS_SEARCH, "predict")
    after = versions.store.sequence
    versions.promote(AS_SEARCH, "predict")
    versions.promote("v1")
    versions.promote("v1")
    assert versions.store.sequence == after + 1
    assert versions.store.model_history("predict")[:2] == [AS_SEARCH, "v2"]

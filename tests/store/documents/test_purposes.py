"""Which version answers what, by the store alone: each purpose has its own past, and follows another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsearch.errors import Conflict, InvalidRequest, ModelNotFound
from dsearch.store import Store
from dsearch.store.documents import registry
from dsearch.store.records import AS_SEARCH


@pytest.fixture
def versions(store: Store) -> Store:
    """v1 and v2 for searches, v3 for predictions, v4 made from v3, v5 of an earlier release like v3."""
    records: list[tuple[str, dict[str, Any]]] = [
        ("v0", {}),
        ("v1", {"purpose": "search"}),
        ("v0", {"purpose": "predict"}),
        ("v3", {"scope": "uploaded"}),
        ("v0", {"objective": "value"}),
    ]
    for number, (parent, record) in enumerate(records, start=1):
        store.add_model(f"v{number}", parent, record)
    return store


def live(store: Store) -> tuple[str, str]:
    models = store.live_models()
    assert (store.live_model(), store.live_model("predict")) == (models["search"], models["predict"])
    return models["search"], models["predict"]


def test_predictions_follow_searches_until_they_have_a_version_of_their_own(versions: Store) -> None:
    assert live(versions) == ("v0", "v0")
    versions.promote("v1")
    assert live(versions) == ("v1", "v1")
    versions.promote("v3", "predict")
    assert live(versions) == ("v1", "v3")
    versions.promote("v2")
    assert live(versions) == ("v2", "v3")
    versions.promote(AS_SEARCH, "predict")
    assert live(versions) == ("v2", "v2")
    versions.promote("v1", "predict")
    versions.promote("v0")
    assert live(versions) == ("v0", "v1")


def test_each_purpose_has_a_past_of_its_own(versions: Store) -> None:
    assert (versions.model_history(), versions.model_history("predict")) == ([], [])
    for version, purpose in (("v1", "search"), ("v3", "predict"), ("v2", "search"), (AS_SEARCH, "predict")):
        versions.promote(version, purpose)  # type: ignore[arg-type]
    assert versions.model_history() == ["v2", "v1"]
    assert versions.model_history("predict") == [AS_SEARCH, "v3"]
    with pytest.raises(InvalidRequest, match="purpose='none'; use one of search, predict"):
        versions.live_model("none")  # type: ignore[arg-type]


def test_a_version_has_the_purpose_of_its_parent_where_it_states_none(versions: Store, folder: Path) -> None:
    expected = ["search", "search", "search", "predict", "predict", "predict"]
    for store in (versions, Store.open(folder, readonly=True)):
        assert [store.purpose_of(f"v{number}") for number in range(6)] == expected
        assert [store.purpose_of(f"v{number}") for number in reversed(range(6))] == expected[::-1]
    store.close()


def test_a_version_for_predictions_answers_no_search(versions: Store) -> None:
    sequence = versions.sequence
    for version in ("v3", "v4", "v5"):
        with pytest.raises(Conflict, match=f"model {version} learned to predict a field"):
            versions.promote(version)
    for version, purpose in (("v9", "search"), ("v9", "predict")):
        with pytest.raises(ModelNotFound):
            versions.promote(version, purpose)  # type: ignore[arg-type]
    with pytest.raises(ModelNotFound):
        versions.promote(AS_SEARCH)
    assert versions.sequence == sequence
    assert live(versions) == ("v0", "v0")


def test_what_answers_is_not_deleted_and_children_get_the_parent_of_a_deleted_one(versions: Store) -> None:
    versions.promote("v1")
    versions.promote("v2")
    versions.promote("v3", "predict")
    for version in ("v2", "v3"):
        with pytest.raises(Conflict):
            versions.delete_model(version)
    with pytest.raises(InvalidRequest, match="v0 is the untrained model"):
        versions.delete_model("v0")
    versions.delete_model("v1")
    assert versions.model("v2").parent == "v0"
    assert versions.next_model_version() == "v6"
    assert [model.version for model in versions.models()] == ["v2", "v3", "v4", "v5"]
    assert versions.verify().ok


def test_a_child_of_a_deleted_version_gets_its_parent(versions: Store) -> None:
    versions.add_model("v6", "v4", {})
    versions.delete_model("v4")
    assert (versions.model("v6").parent, versions.purpose_of("v6")) == ("v3", "predict")


def test_a_log_of_an_earlier_release_is_of_both_purposes(versions: Store) -> None:
    """A version for predictions answered them until the next entry, whichever that was."""
    for number in (1, 3, 2, 1):
        with versions._operation() as operation:
            registry.add_live(operation, "model", number)
    assert versions.model_history() == ["v1", "v2", "v1"]
    assert versions.model_history("predict") == [AS_SEARCH, "v3"]
    assert live(versions) == ("v1", "v1")


def test_the_live_versions_survive_an_opening(versions: Store, folder: Path) -> None:
    versions.promote("v2")
    versions.promote("v4", "predict")
    versions.close()
    with Store.open(folder) as again:
        assert live(again) == ("v2", "v4")
        again.promote("v1")
        assert live(again) == ("v1", "v4")

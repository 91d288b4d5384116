from __future__ import annotations

import math

import pytest

from dsearch.errors import Conflict, Gone, InvalidRequest, ModelNotFound, NotFound, Unavailable
from dsearch.store import GenerationRecord, ModelRecord, Store, registry

DIGEST = "0123456789abcdef" * 4


def test_a_generation_is_live_by_its_publication_alone(store, folder):
    assert store.live_generation() is None
    assert store.next_generation_number() == 1
    store.add_generation(1, manifest_digest=DIGEST, rows=5, snapshot=0, record={"model": "v0"})
    assert store.live_generation() is None
    assert store.publish_generation(1) == 2
    record = GenerationRecord(1, DIGEST, 5, 0, {"model": "v0"}, written=1)
    assert store.live_generation() == record
    store.add_generation(2, manifest_digest=DIGEST, rows=6, snapshot=2)
    store.publish_generation(2)
    store.close()
    with Store.open(folder) as again:
        assert [generation.number for generation in again.generations()] == [1, 2]
        assert again.live_generation().number == 2
        again.publish_generation(1)  # back
        assert again.live_generation() == record
        assert again.verify().ok


def test_publishing_what_is_live_is_not_an_operation(store):
    store.add_generation(1, manifest_digest=DIGEST, rows=0, snapshot=0)
    assert store.publish_generation(1) == store.publish_generation(1) == 2
    assert store.promote("v0") == 3
    assert store.promote("v0") == 3


def test_generations_that_cannot_be(store):
    store.add_generation(1, manifest_digest=DIGEST, rows=0, snapshot=0)
    with pytest.raises(Conflict, match="generation 1 is registered already"):
        store.add_generation(1, manifest_digest=DIGEST, rows=0, snapshot=0)
    with pytest.raises(InvalidRequest, match="64 hex digits"):
        store.add_generation(2, manifest_digest="abc", rows=0, snapshot=0)
    with pytest.raises(InvalidRequest, match="numbers start at 1"):
        store.add_generation(0, manifest_digest=DIGEST, rows=0, snapshot=0)
    with pytest.raises(NotFound, match="generation 2 is not registered"):
        store.publish_generation(2)
    assert store.sequence == 1


def test_numbers_skip_folders_that_a_killed_build_left(store, folder):
    (folder / "generations" / "000007").mkdir(parents=True)
    (folder / "generations" / ".building-9").mkdir()
    (folder / "models" / "v3").mkdir(parents=True)
    assert store.next_generation_number() == 8
    assert store.next_model_version() == "v4"


def test_v0_is_live_until_another_is_promoted_and_can_be_again(store):
    assert store.live_model() == "v0"
    assert store.model("v0") == ModelRecord("v0", None)
    assert store.next_model_version() == "v1"
    store.add_model("v1", "v0", {"scores": {"nDCG@10": 0.5}})
    assert store.live_model() == "v0"
    store.promote("v1")
    assert store.live_model() == "v1"
    assert store.models() == [ModelRecord("v1", "v0", {"scores": {"nDCG@10": 0.5}}, written=1)]
    store.add_model("v2", "v1", {})
    store.promote("v2")
    store.promote("v0")
    assert store.model_history() == ["v0", "v2", "v1"]
    assert store.live_model() == "v0"
    assert store.next_model_version() == "v3"
    assert store.verify().ok


def test_what_is_added_to_a_record_replaces_what_is_there(store):
    store.add_model("v1", "v0", {"note": "first", "gate": 0.5})
    store.add_to_record("v1", {"note": "second", "kept": True})
    assert store.model("v1").record == {"note": "second", "gate": 0.5, "kept": True}
    assert store.verify().ok


def test_what_is_live_is_read_once_for_each_operation(store, folder, monkeypatch):
    read = []
    look = registry.live_model
    monkeypatch.setattr(registry, "live_model", lambda *asked: read.append(asked) or look(*asked))
    store.add_model("v1", parent="v0", record={})
    store.promote("v1")
    read.clear()
    with Store.open(folder, readonly=True) as other:
        for _ in range(3):
            assert store.live_model() == other.live_model() == "v1"
        assert len(read) == 1 + 3  # another process may have promoted one: readers look each time
        store.promote("v0")
        assert store.live_model() == other.live_model() == "v0"
    store.close()
    with pytest.raises(Unavailable):
        store.live_model()


def test_models_that_cannot_be(store):
    with pytest.raises(ModelNotFound, match="no model 'v1'; this collection has v0"):
        store.promote("v1")
    with pytest.raises(ModelNotFound, match="no model 'v7'"):
        store.add_model("v1", "v7", {})
    for name in ("../x", "v01", "v", "1", "v-1", "v1\n", "v٣"):
        with pytest.raises(InvalidRequest, match="versions are v0, v1, v2"):
            store.add_model(name, "v0", {})
    with pytest.raises(InvalidRequest, match="always there"):
        store.add_model("v0", "v0", {})
    with pytest.raises(InvalidRequest, match="not JSON"):
        store.add_model("v1", "v0", {"score": math.nan})
    store.add_model("v1", "v0", {})
    with pytest.raises(Conflict, match="model v1 is registered already"):
        store.add_model("v1", "v0", {})
    assert store.sequence == 1


@pytest.fixture
def predicting(store):
    """v1 and v2 for searches, v3 for predictions, v4 made from v3, v5 of an earlier release like v3."""
    records = [
        ("v0", {}),
        ("v1", {"purpose": "search", "objective": "value"}),
        ("v0", {"purpose": "predict"}),
        ("v3", {"scope": "uploaded"}),
        ("v0", {"objective": "value"}),
    ]
    for number, (parent, record) in enumerate(records, start=1):
        store.add_model(f"v{number}", parent, record)
    return store


def test_versions_for_predictions_never_become_live(predicting, folder):
    expected = [False, False, False, True, True, True]
    for store in (predicting, Store.open(folder, readonly=True)):
        assert [store.predicts_only(f"v{number}") for number in range(6)] == expected
        assert [store.predicts_only(f"v{number}") for number in reversed(range(6))] == expected[::-1]
    sequence = predicting.sequence
    for version in ("v3", "v4", "v5"):
        with pytest.raises(Gone, match=f"model {version} answered predictions"):
            predicting.promote(version)
    assert (predicting.sequence, predicting.live_model()) == (sequence, "v0")


def test_entries_of_versions_for_predictions_are_passed_over(predicting):
    with predicting._operation() as operation:  # the log of predictions of an earlier release
        registry.make_live(operation, "predict model", 4)
    assert (predicting.live_model(), predicting.model_history()) == ("v0", [])
    predicting.promote("v1")
    for number in (3, 2, 5):  # still earlier there was one log
        with predicting._operation() as operation:
            registry.make_live(operation, "model", number)
    assert predicting.model_history() == ["v2", "v1"]
    predicting.delete_model("v5")
    assert predicting.live_model() == "v2"
    with pytest.raises(Conflict, match="v2 answers now"):
        predicting.delete_model("v2")
    predicting.promote("v2")
    assert predicting.verify().ok


def test_a_deleted_version_hands_on_that_it_answered_predictions(predicting):
    predicting.delete_model("v3")
    assert predicting.model("v4").parent == "v0"
    assert predicting.predicts_only("v4")
    predicting.delete_model("v1")
    assert (predicting.model("v2").parent, predicting.predicts_only("v2")) == ("v0", False)
    assert predicting.next_model_version() == "v6"
    assert predicting.verify().ok

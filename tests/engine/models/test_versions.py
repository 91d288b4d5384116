"""Back to what answered before, and versions that are deleted for good."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from support.fakes import HashingEncoder
from support.guarded import guarded
from support.syncs import recorded

from dsearch.attention.retrieval.head import Head
from dsearch.encoder import EncoderChange, EncoderTraining
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.models.files import way_back
from dsearch.engine.state.remembered import RememberedRows
from dsearch.errors import Conflict, EncoderUnavailable, InvalidRequest, ModelNotFound
from dsearch.lru_cache import LruCache

checked_encoders = guarded(LruCache, "_entries", "_sizes", free=("__len__",))
checked_heads = guarded(RememberedRows, "_heads")


@pytest.fixture
def versions(collection: Collection) -> Collection:
    for parent in ("v0", "v1", "v0"):
        collection.add_model(Head(32), {"scope": "head"}, parent=parent)
    return collection  # v1, v2 from v1, v3


def test_rollback_goes_the_way_back(versions: Collection) -> None:
    for version in ("v1", "v3", "v2"):
        versions.promote(version)
    assert way_back(versions.store) == ["v0", "v1", "v3", "v2"]
    assert [versions.rollback(), versions.rollback()] == ["v3", "v1"]
    assert versions.live_model == "v1"
    versions.promote("v3")
    assert [versions.rollback(), versions.rollback()] == ["v1", "v0"]
    assert versions.live_model == "v0"
    with pytest.raises(Conflict, match="v0 answers, and nothing answered before it"):
        versions.rollback()


def test_a_version_takes_the_place_of_the_one_that_it_is_compared_with_alone(
    versions: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be promoted between the look and the promotion."""
    versions.promote("v1")
    with pytest.raises(Conflict, match=r"v1 is live and not v0, which v3 was made from; begin anew"):
        versions.promote("v3", after="v0")
    assert versions.live_model == "v1"
    promote, held = versions.store.promote, list[bool]()
    monkeypatch.setattr(
        versions.store, "promote", lambda of: held.append(versions._writing.locked()) or promote(of)
    )
    versions.promote("v3", after="v1")
    assert held == [True]
    assert versions.live_model == "v3"


def test_a_promotion_stands_where_the_index_cannot_be_measured(
    versions: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "retune", Mock(side_effect=EncoderUnavailable("not on this machine")))
    versions.promote("v1")
    assert versions.live_model == "v1"


def test_promoting_an_earlier_one_is_going_back(versions: Collection) -> None:
    for version in ("v1", "v3", "v1"):
        versions.promote(version)
    assert versions.rollback() == "v0"
    assert versions.store.model_history() == ["v0", "v1", "v3", "v1"]


def test_a_version_is_deleted_for_good(versions: Collection, tmp_path: Path) -> None:
    folder = versions.store.path / "models" / "v3"
    assert versions.search("apple", model="v3").stamp.model == "v3"
    versions.delete_model("v3")
    assert not folder.exists()
    with pytest.raises(ModelNotFound, match="no model 'v3'; this collection has v0, v1, v2"):
        versions.search("apple", model="v3")
    assert versions.store.verify().ok
    assert versions.add_model(Head(32), {}) == "v4"  # v3 is what old answers name
    with SearchEngine(tmp_path / "home", readonly=True, encoder=HashingEncoder) as other:
        assert [m.version for m in other.collection("food").store.models()] == ["v1", "v2", "v4"]


def test_a_deletion_is_synced_before_files_go(versions: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    happened = recorded(monkeypatch)
    versions.delete_model("v3")
    at = happened.index("rename .v3.deleted.writing")
    assert happened[at + 1] == "sync models"
    assert not any(line.startswith("unlink") and "safetensors" in line for line in happened[:at])


def test_an_added_version_is_synced_before_it_has_its_name(
    versions: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = recorded(monkeypatch)
    assert versions.add_model(Head(32), {"scope": "head"}) == "v4"
    at = happened.index("rename v4")
    assert {"sync head.safetensors", "sync models"} <= {*happened[: at + 2]}
    assert "sync models" in happened[at + 1 :]
    assert happened.index("sync head.safetensors") < at


def test_a_deleted_version_leaves_nothing_in_memory(versions: Collection) -> None:
    rotation = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(0)))[0]
    change = EncoderChange(EncoderTraining("all"), {"weight": rotation})
    version = versions.add_model(Head(32), {"scope": "query"}, encoder=change)
    versions.search("apple", model=version)
    assert versions._encoders._loaded.get(version) is not None
    versions.delete_model(version)
    assert versions._encoders._loaded.get(version) is None
    assert version not in versions._encoders._described
    with pytest.raises(ModelNotFound):
        versions.encoder_of(version)


def test_what_is_needed_is_not_deleted(versions: Collection) -> None:
    versions.promote("v2")
    with pytest.raises(Conflict, match="model v2 answers now"):
        versions.delete_model("v2")
    with pytest.raises(InvalidRequest, match="v0 is the untrained model"):
        versions.delete_model("v0")
    with pytest.raises(ModelNotFound):
        versions.delete_model("v9")
    versions.promote("v3")
    versions.delete_model("v1")
    assert versions.store.model("v2").parent == "v0"  # that of v1
    versions.delete_model("v2")
    assert versions.rollback() == "v0"  # v2 lay before it and is gone


def test_files_of_a_deletion_cut_short_are_cleared(
    versions: Collection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def killed(*_: object, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise KeyboardInterrupt

    monkeypatch.setattr("dsearch.engine.models.files.shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        versions.delete_model("v3")
    monkeypatch.undo()
    left = versions.store.path / "models"
    versions.close()
    with SearchEngine(tmp_path / "home2", encoder=HashingEncoder):
        pass
    from dsearch.engine.indexing.leases import clear
    from dsearch.store import Store

    with Store.open(left.parent) as store:
        clear(store)
        assert sorted(path.name for path in left.iterdir()) == ["v1", "v2"]
        assert [model.version for model in store.models()] == ["v1", "v2"]

"""Releases on disk: whole or not at all, and every damaged byte of a shard is noticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.cli.commands import serve
from dsearch.cluster import release as splitting
from dsearch.cluster.release import Release, ShardManifest, split
from dsearch.cluster.shards.shard import LocalShards, Shard
from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.models.files import save_model
from dsearch.errors import Conflict, CorruptData, InvalidRequest, UnsupportedFormat
from dsearch.types import Document


@pytest.fixture
def folder(collection: Collection, tmp_path: Path) -> Path:
    collection.refresh()
    split(collection.store, collection.snapshot.generation, tmp_path / "release", 3)
    return tmp_path / "release"


def test_shards_are_the_generation_in_its_order(collection: Collection, folder: Path) -> None:
    release = Release.read(folder)
    assert [(one.name, one.offset, one.documents) for one in release.shards] == [
        ("000", 0, 5),
        ("001", 5, 5),
        ("002", 10, 6),
    ]
    shards = LocalShards(folder)
    found = [
        document.id
        for shard in shards.shards
        for document in shard.store.documents(shard.state.rows(np.arange(shard.state.positions)))
    ]
    snapshot = collection.snapshot
    assert [found] == collection.ids_at(snapshot, np.arange(snapshot.positions)[None])
    shards.close()


def test_documents_that_no_shard_has_are_told_with_each_start(
    collection: Collection, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a release that is there already, too: a second start exchanges nothing without a refresh."""
    collection.refresh()
    first, folder = serve._split(collection, 2)  # pyright: ignore[reportPrivateUsage]
    assert "not in the shards" not in capsys.readouterr().err
    collection.upsert([Document("later", "apple")])
    assert serve._split(collection, 2) == (first, folder)  # pyright: ignore[reportPrivateUsage]
    assert f"not in the shards until: dsearch refresh -c {collection.name}" in capsys.readouterr().err


def test_a_shard_counts_the_documents_of_all_shards(collection: Collection, folder: Path) -> None:
    """By which the weight of a word is the same in each of them."""
    shards = [ShardManifest.read(folder / name) for name in ("000", "001", "002")]
    assert [one.documents for one in shards] == [5, 5, 6]
    assert {one.total for one in shards} == {collection.describe().documents} == {16}


def test_passages_go_with_their_documents(engine: SearchEngine, tmp_path: Path) -> None:
    made = engine.create("long", passages=PassageOptions(tokens=16, overlap=4))
    made.ingest([Document(f"d{i}", f"apple{i} " + "bread cheese " * (i % 3 * 9)) for i in range(11)])
    made.refresh()
    generation = made.snapshot.generation
    split(made.store, generation, tmp_path / "split", 3)
    shards = LocalShards(tmp_path / "split")
    found: list[int] = []
    for shard in shards.shards:
        table = shard.state.generation.passages
        found += (table.owners + shard.manifest.offset).tolist()
    shards.close()
    assert found == generation.passages.owners.tolist()
    assert len(set(found)) == 7


def test_opening_changes_no_byte_that_is_proven(folder: Path) -> None:
    LocalShards(folder).close()
    LocalShards(folder).close()


def test_every_damaged_file_is_noticed(folder: Path) -> None:
    shard = folder / "001"
    digest = ShardManifest.read(shard).digest
    for name in ShardManifest.read(shard).files:
        path = shard / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if whole else b"x")
        with pytest.raises((CorruptData, UnsupportedFormat)):
            Shard.open(shard, digest)
        path.write_bytes(whole)
    Shard.open(shard, digest).close()
    with pytest.raises(CorruptData, match="another shard"):
        Shard.open(folder / "002", digest)


def test_a_file_of_a_shard_is_no_link(folder: Path, tmp_path: Path) -> None:
    """Its content fits as long as nobody writes to where it leads."""
    shard = folder / "001"
    for name in ShardManifest.read(shard).files:
        path, elsewhere = shard / name, tmp_path / "elsewhere"
        if name.startswith("generations/") and path.name != "manifest.json":
            continue
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
        with pytest.raises(CorruptData, match="missing or not a plain file"):
            Shard.open(shard)
        path.unlink()
        elsewhere.rename(path)
    Shard.open(shard).close()


@pytest.mark.parametrize("name", ["release.json", "001/shard.json"])
def test_a_changed_manifest_is_noticed(folder: Path, name: str) -> None:
    path = folder / name
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"documents": content["documents"] + 1}))
    with pytest.raises(CorruptData, match="changed since it was written"):
        LocalShards(folder)


def test_a_release_is_whole_or_not_there(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = collection.snapshot.generation
    with pytest.raises(InvalidRequest, match="shards=0; use 1 to"):
        split(collection.store, generation, tmp_path / "none", 0)
    monkeypatch.setattr("dsearch.cluster.release.publish_folder", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        split(collection.store, generation, tmp_path / "half", 2)
    monkeypatch.undo()
    assert not list(tmp_path.glob("*half*"))
    monkeypatch.setattr(splitting, "MAX_SHARDS", 2)
    with pytest.raises(InvalidRequest, match="shards=3; use 1 to 2"):
        split(collection.store, generation, tmp_path / "none", 3)
    assert len(split(collection.store, generation, tmp_path / "two", 2).shards) == 2
    monkeypatch.undo()
    split(collection.store, generation, tmp_path / "there", 20)  # more shards than documents
    with pytest.raises(Conflict, match="exists"):
        split(collection.store, generation, tmp_path / "there", 2)


def test_shards_have_the_keys_of_the_generation(collection: Collection, tmp_path: Path) -> None:
    """A head whose keys are projected proposes by them; a shard without the projection proposes others."""
    collection.refresh()
    head = Head(collection.snapshot.generation.embeddings.shape[1])
    with torch.no_grad():
        head.key_delta += 0.1 * torch.randn(head.key_delta.shape, generator=torch.Generator().manual_seed(0))
    collection.promote(save_model(collection.store, head, parent="v0", record={}))
    collection.refresh()
    generation = collection.snapshot.generation
    assert generation.key_projection is not None
    split(collection.store, generation, tmp_path / "release", 2)
    shards = LocalShards(tmp_path / "release")
    for shard in shards.shards:
        projection = shard.state.generation.key_projection
        assert projection is not None
        np.testing.assert_array_equal(projection, generation.key_projection)
    shards.close()


def test_shards_keep_keys_as_the_generation_does(collection: Collection, tmp_path: Path) -> None:
    collection.refresh(kind="SQ8")
    split(collection.store, collection.snapshot.generation, tmp_path / "release", 2)
    shards = LocalShards(tmp_path / "release")
    kinds = [shard.state.generation.manifest.dense["kind"] for shard in shards.shards]
    assert kinds == [collection.snapshot.generation.manifest.dense["kind"]] * 2
    assert kinds[0] == "SQ8"
    shards.close()


def test_a_shard_of_another_number_of_documents_than_its_generation_is_refused(folder: Path) -> None:
    manifest = ShardManifest.read(folder / "001")
    replace(manifest, documents=manifest.documents + 1).write(folder / "001")
    with pytest.raises(CorruptData, match="do not fit each other; split it again"):
        Shard.open(folder / "001")


def test_every_shard_of_a_release_is_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    close = Shard.close
    monkeypatch.setattr(Shard, "close", lambda shard: closed.append(shard.manifest.number) or close(shard))
    LocalShards(folder).close()
    assert closed == [0, 1, 2]

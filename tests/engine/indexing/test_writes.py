"""Writes: visible when acknowledged, encoded once, resumable, published by one row, one writer at a time."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from support.engine.reference import assert_equals_reference, turned_head
from support.fakes import HashingEncoder
from support.index import stored_keys
from support.warm.processes import run_warm

from dsearch.engine import Collection, SearchEngine
from dsearch.errors import (
    CollectionExists,
    CollectionNotFound,
    Conflict,
    CorruptData,
    EncoderMismatch,
    HomeLocked,
    InvalidDocument,
    InvalidRequest,
)
from dsearch.types import Document


def test_writes_are_visible_when_acknowledged(
    collection: Collection, documents: list[Document], encoder: HashingEncoder
) -> None:
    before = collection.search("quince jam").stamp
    receipt = collection.upsert(
        [Document(id="new", text="quince jam"), Document(id="d3", text="quince tart")]
    )
    assert (receipt.inserted, receipt.updated) == (1, 1)
    result = collection.search("quince jam", limit=100)
    assert result.hits[0].id == "new"
    assert next(hit for hit in result.hits if hit.id == "d3").text == "quince tart"
    assert len(result.hits) == 17
    assert result.stamp.generation == before.generation
    assert result.stamp.sequence == receipt.sequence > before.sequence
    collection.delete(["new", "d0", "not there"])
    ids = [hit.id for hit in collection.search("quince jam", limit=100).hits]
    assert len(ids) == 15
    assert not {"new", "d0"} & set(ids)


def test_fresh_rows_score_as_built_ones_but_for_the_statistics(
    engine: SearchEngine, documents: list[Document], encoder: HashingEncoder
) -> None:
    collection = engine.create("partly")
    collection.ingest(documents[:10])
    collection.upsert(documents[10:])
    collection.delete(["d2"])
    assert_equals_reference(collection, [d for d in documents if d.id != "d2"], encoder, "dense")
    number = collection.refresh()
    left = [d for d in documents if d.id != "d2"]
    assert collection.search("apple").stamp.generation == number
    for mode in ("hybrid", "dense", "keyword"):
        assert_equals_reference(collection, left, encoder, mode)


def test_unchanged_documents_are_not_encoded_again(
    collection: Collection, documents: list[Document], encoder: HashingEncoder
) -> None:
    encoded, generation = encoder.encoded, collection.describe().generation
    report = collection.ingest(documents)
    assert (report.unchanged, report.encoded) == (16, 0)
    assert encoder.encoded == encoded
    assert collection.describe().generation == generation
    collection.upsert(documents)
    assert encoder.encoded == encoded
    changed = Document(id="d1", title=documents[1].title, text=documents[1].text, metadata={"new": True})
    collection.upsert([changed])
    assert encoder.encoded == encoded
    assert collection.search("cheese", limit=100).hits[0] is not None
    assert collection.store.get("d1").metadata == {"new": True}


class StopsAfter(HashingEncoder):
    """Stops like a killed process in the middle of indexing."""

    left = 600

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        self.left -= len(texts)
        if self.left < 0:
            raise KeyboardInterrupt
        return super().encode_documents(texts)


def test_interrupted_indexing_goes_on(tmp_path: Path) -> None:
    documents = [Document(id=str(i), text=f"text number {i} " * (1 + i % 7)) for i in range(1000)]
    encoder = StopsAfter()
    with SearchEngine(tmp_path, encoder=lambda: encoder) as engine, pytest.raises(KeyboardInterrupt):
        engine.create("big").ingest(documents)
    assert encoder.encoded == 512
    encoder.left = 10_000
    with SearchEngine(tmp_path, encoder=lambda: encoder) as engine:
        collection = engine.collection("big")
        assert collection.describe().pending == 488
        report = collection.ingest(documents)
        assert (report.unchanged, report.encoded) == (1000, 488)
        assert collection.describe().pending == 0
        assert len(collection.search("text number 999", limit=1000).hits) == 1000


def test_a_bad_document_leaves_the_batch_unwritten(collection: Collection) -> None:
    with pytest.raises(InvalidDocument, match="bad"):
        collection.upsert([Document(id="fine", text="fine"), Document(id="bad", text="  ")])
    assert "fine" not in [hit.id for hit in collection.search("fine", limit=100).hits]


def test_reopened_it_answers_the_same(tmp_path: Path, documents: list[Document]) -> None:
    with SearchEngine(tmp_path, encoder=HashingEncoder) as engine:
        collection = engine.create("food")
        collection.ingest(documents[:12])
        collection.upsert(documents[12:])
        collection.promote(collection.add_model(turned_head(), {"note": 1}))
        before = collection.search("lemon and honey", limit=100)
    with SearchEngine(tmp_path, encoder=HashingEncoder, readonly=True) as engine:
        after = engine.collection("food").search("lemon and honey", limit=100)
    assert (after.hits, after.stamp) == (before.hits, before.stamp)


def test_refresh_projects_the_keys_and_changes_no_answer(
    collection: Collection, documents: list[Document], encoder: HashingEncoder
) -> None:
    collection.promote(collection.add_model(turned_head(), {}))
    before = collection.search("lemon and honey", limit=100)
    collection.refresh()
    after = collection.search("lemon and honey", limit=100)
    assert [hit.id for hit in after.hits] == [hit.id for hit in before.hits]
    for one, other in zip(after.hits, before.hits, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-5)
    generation = collection.snapshot.generation
    keys = generation.embeddings @ turned_head().key_projection().detach().numpy().T
    np.testing.assert_allclose(stored_keys(generation.dense, 0, 16), keys, atol=1e-5)
    # Another head is served by these keys all the same: proposals go through W_g⁻ᵀ.
    collection.promote("v0")
    assert_equals_reference(collection, documents, encoder, "dense")


def test_the_old_index_proposes_what_a_rebuilt_one_would(engine: SearchEngine) -> None:
    generator = np.random.default_rng(5)
    words = np.array([f"w{i}" for i in range(300)])
    documents = [Document(id=str(i), text=" ".join(generator.choice(words, 8))) for i in range(800)]
    collection = engine.create("large")
    collection.ingest(documents)
    collection.promote(collection.add_model(turned_head(), {}))
    queries = ["w1 w2 w3", "w100", "w7 w8 w9 w10"]
    folded = collection.attend(queries, mode="dense", candidates=50)
    collection.refresh()
    assert collection.snapshot.unfold is not None
    rebuilt = collection.attend(queries, mode="dense", candidates=50)
    assert folded.ids == rebuilt.ids
    torch.testing.assert_close(folded.output.scores, rebuilt.output.scores, atol=1e-4, rtol=0)
    collection.promote("v0")
    through_projection = collection.attend(queries, mode="dense", candidates=50)
    with torch.inference_mode():
        every = (
            torch.as_tensor(collection.encoder.encode_queries(queries))
            @ torch.as_tensor(np.array(collection.snapshot.generation.embeddings)).T
        )
    torch.testing.assert_close(
        through_projection.output.scores, every.topk(50, dim=1).values, atol=1e-4, rtol=0
    )


def test_a_damaged_generation_is_refused_and_rebuilt(tmp_path: Path, documents: list[Document]) -> None:
    with SearchEngine(tmp_path, encoder=HashingEncoder) as engine:
        engine.create("food").ingest(documents)
    keys = sorted((tmp_path / "food" / "generations").glob("*/keys.faiss"))[-1]
    content = bytearray(keys.read_bytes())
    content[len(content) // 2] ^= 1
    keys.write_bytes(content)
    with SearchEngine(tmp_path, encoder=HashingEncoder) as engine:
        collection = engine.collection("food")
        with pytest.raises(CorruptData, match=r"keys\.faiss"):
            collection.search("apple")
        collection.refresh()
        assert len(collection.search("apple", limit=100).hits) == 16


def test_a_damaged_head_does_not_go_live(collection: Collection) -> None:
    version = collection.add_model(turned_head(), {})
    file = collection.store.path / "models" / version / "head.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)
    with pytest.raises(CorruptData, match="promote another version"):
        collection.promote(version)
    assert collection.live_model == "v0"


def test_one_process_writes(tmp_path: Path, engine: SearchEngine) -> None:
    home = engine.home.path
    code = (
        "import sys; from dsearch.engine.home import Home; from pathlib import Path\n"
        "from dsearch.errors import HomeLocked\n"
        "try: Home(Path(sys.argv[1])).lock()\n"
        "except HomeLocked as error: print(error)"
    )
    answer = run_warm([sys.executable, "-c", code, home])
    assert f"is being written by process {os.getpid()} on {socket.gethostname()} (" in answer.stdout
    engine.close()
    answer = run_warm([sys.executable, "-c", code, home])
    assert (answer.returncode, answer.stdout) == (0, "")


def test_reading_needs_no_lock(engine: SearchEngine, collection: Collection) -> None:
    with SearchEngine(engine.home.path, readonly=True, encoder=HashingEncoder) as reader:
        assert len(reader.collection("food").search("apple", limit=100).hits) == 16
        with pytest.raises(Conflict, match="readonly"):
            reader.create("other")
        with pytest.raises(Conflict, match="readonly"):
            reader.collection("food").upsert([Document(id="x", text="x")])


def test_another_encoder_is_refused(tmp_path: Path, documents: list[Document]) -> None:
    with SearchEngine(tmp_path, encoder=HashingEncoder) as engine:
        engine.create("food").ingest(documents)
    with SearchEngine(tmp_path, encoder=lambda: HashingEncoder(16, "other")) as engine:
        with pytest.raises(EncoderMismatch, match="dimension 32 there, 16 here"):
            engine.collection("food").search("apple")
        assert engine.collection("food").search("apple", mode="keyword").hits


def test_collections_come_and_go(engine: SearchEngine) -> None:
    engine.create("one")
    with pytest.raises(CollectionExists, match="'one' exists"):
        engine.create("one")
    with pytest.raises(CollectionNotFound, match="there are: one"):
        engine.collection("two")
    for name in ("../out", "", "UPPER", "a/b"):
        with pytest.raises(InvalidRequest):
            engine.create(name)
    engine.drop("one")
    assert engine.names() == []
    engine.create("one")


def test_lock_is_released_on_error(tmp_path: Path) -> None:
    with pytest.raises(CollectionNotFound), SearchEngine(tmp_path) as engine:
        engine.collection("none")
    with SearchEngine(tmp_path) as engine, pytest.raises(HomeLocked):
        SearchEngine(tmp_path)
    assert not engine.home.locked

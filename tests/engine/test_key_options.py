"""How keys are kept: asked for once, tuned on the collection's own queries, tuned again for a new head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine, rebuild
from dsearch.engine.indexing import tuning
from dsearch.engine.indexing.tuning import FILE_NAME, TunedKeys, keep_tuned, kept_tuned, key_queries
from dsearch.engine.options import KeyOptions
from dsearch.engine.rebuild import QUERIES, folded_queries, tuning_queries
from dsearch.errors import InvalidRequest
from dsearch.index import durable
from dsearch.index.dense.tuning import exact_neighbours, recall
from dsearch.types import Document

TARGET = 0.91


def documents(count: int) -> list[Document]:
    chance = np.random.default_rng(0)
    words = [f"word{i}" for i in range(400)]
    return [
        Document(id=f"{i}", text=" ".join(chance.choice(words, 6)) + f". Another sentence {words[i % 400]}.")
        for i in range(count)
    ]


@pytest.fixture
def approximate(engine: SearchEngine) -> Collection:
    made = engine.create("many", keys=KeyOptions("IVF", TARGET))
    made.ingest(documents(3000))
    return made


def test_what_was_asked_for_holds_until_something_else_is(
    engine: SearchEngine, encoder: HashingEncoder
) -> None:
    made = engine.create("few", keys=KeyOptions("auto", memory_bytes=100_000))
    made.ingest(documents(200))
    assert made.describe().keys["kind"] == "Flat"
    assert made.describe().keys["asked"] == "auto"
    made.ingest(documents(1500))
    assert made.describe().keys["kind"] == "SQfp16"  # 1,500 keys of 32 numbers: 192,000 bytes, 96,000, …
    made.refresh(memory_bytes=50_000)
    report = made.describe().keys
    assert (report["kind"], report["memory_bytes"], report["recall_target"]) == ("SQ8", 50_000, 0.99)
    home = engine.home.path
    engine.close()
    with SearchEngine(home, encoder=lambda: encoder) as again:
        again.collection("few").refresh()
        assert again.collection("few").describe().keys["kind"] == "SQ8"
        again.collection("few").refresh(kind="Flat")
        again.collection("few").refresh()
        assert again.collection("few").describe().keys["kind"] == "Flat"


def test_what_makes_no_sense_is_refused(engine: SearchEngine, collection: Collection) -> None:
    with pytest.raises(InvalidRequest, match="dense kind 'Fast'; use one of Flat"):
        engine.create("x", keys=KeyOptions("Fast"))
    for wrong in ({"recall_target": 1.5}, {"memory_bytes": 0}, {"kind": ""}):
        with pytest.raises(InvalidRequest):
            collection.refresh(**wrong)
    assert engine.names() == ["food"]


def test_an_approximate_kind_is_tuned_on_sentences_of_the_documents(approximate: Collection) -> None:
    report = approximate.describe().keys
    assert report["recall_at_10"] >= TARGET
    assert report["parameters"]["nprobe"] >= 1
    asked = tuning_queries(approximate, KeyOptions("IVF"), None)
    assert asked is not None
    assert asked.shape == (QUERIES, 32)
    generation = approximate.snapshot.generation
    found = recall(generation.dense, asked, exact_neighbours(generation.embeddings, asked))
    assert found == pytest.approx(report["recall_at_10"], abs=1e-4)


def test_queries_that_are_given_are_what_it_is_tuned_by(approximate: Collection) -> None:
    texts = [f"word{i} word{2 * i}" for i in range(50)]
    approximate.refresh(queries=texts)
    generation = approximate.snapshot.generation
    measured = generation.manifest.dense["measured"]
    assert measured["queries"] == 50
    states = approximate.query_states(texts, "dense").numpy()
    found = recall(generation.dense, states, exact_neighbours(generation.embeddings, states))
    assert found == pytest.approx(measured["recall_at_10"], abs=1e-4)


def test_exact_kinds_and_given_embeddings_need_no_queries(
    engine: SearchEngine, collection: Collection
) -> None:
    assert tuning_queries(collection, KeyOptions("Flat"), None) is None
    assert tuning_queries(collection, KeyOptions("auto"), None) is None  # few documents: none will be needed
    images = engine.create("images", dimension=4, keys=KeyOptions("HNSW"))
    images.upsert([Document(id="a", text="a")], np.eye(4, dtype=np.float32)[:1])
    assert images.refresh() == 2
    assert folded_queries(images) is None
    assert images.retune() is None
    assert collection.retune() is None


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_sample_queries_are_of_all_heads_and_of_texts_throughout(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, heads: int
) -> None:
    """A batch has its heads side by side: every second row of it would be of the first head alone."""
    monkeypatch.setattr(rebuild, "QUERIES", 6)
    head = Head(32, heads=heads, rank=4)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    collection.promote(collection.add_model(head, {}))
    texts = [f"apple number{n}" for n in range(6)]
    taken = folded_queries(collection, [*texts, "beyond"])
    with torch.no_grad():
        every = head.fold(head.queries(collection.query_states(texts, "dense"))).numpy()
    expected = every[::heads].reshape(-1, 32)
    assert taken is not None
    np.testing.assert_allclose(taken, expected, atol=1e-6)
    assert len(taken) == 6


def test_sample_queries_are_of_documents_throughout_the_collection(
    collection: Collection, encoder: HashingEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "QUERIES", 4)
    encode, asked = encoder.encode_queries, list[str]()
    monkeypatch.setattr(encoder, "encode_queries", lambda texts: asked.extend(texts) or encode(texts))
    assert folded_queries(collection) is not None
    assert [text.split()[-1] for text in asked] == ["number0", "number5", "number10", "number15"]


def turned(collection: Collection, strength: float) -> str:
    """A head whose queries go elsewhere than those that the index was tuned by."""
    head = type(collection.head("v0"))(32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        head.query_delta.copy_(strength * torch.randn(1, 32, 32, generator=generator))
        head.key_delta.copy_(0.1 * torch.randn(32, 32, generator=generator))
    return collection.add_model(head, {})


def found_by(collection: Collection, version: str) -> float:
    head, generation = collection.head(version), collection.snapshot.generation
    states = collection.query_states([one.text for one in documents(100)], "dense")
    with torch.inference_mode():
        folded = head.fold(head.queries(states)).flatten(0, 1).numpy()
    asked = key_queries(folded, generation.key_projection)
    truth = exact_neighbours(generation.embeddings, asked, generation.key_projection)
    return recall(generation.dense, asked, truth)


def test_a_promotion_measures_the_index_and_tunes_it_for_the_new_heads_queries(
    engine: SearchEngine, approximate: Collection, encoder: HashingEncoder
) -> None:
    version = turned(approximate, 3.0)
    before = found_by(approximate, version)
    assert before < TARGET - 0.02
    approximate.promote(version)
    report = approximate.describe().keys
    assert report["recall_at_10"] >= TARGET
    assert found_by(approximate, version) > before
    assert report["parameters"] == approximate.snapshot.generation.dense.parameters
    assert report["parameters"] != approximate.snapshot.generation.manifest.dense["parameters"]
    kept = json.loads((approximate.store.path / FILE_NAME).read_text())
    assert (kept["model"], kept["measured"]["target"]) == (version, TARGET)
    home = engine.home.path
    engine.close()
    with SearchEngine(home, encoder=lambda: encoder) as again:
        there = again.collection("many")
        assert there.snapshot.generation.dense.parameters == report["parameters"]
        there.refresh()  # a new generation is tuned by itself
        assert there.describe().keys["recall_at_10"] >= TARGET
        assert (
            there.snapshot.generation.dense.parameters
            == there.snapshot.generation.manifest.dense["parameters"]
        )


def test_kept_parameters_that_cannot_be_read_are_those_of_the_build(
    engine: SearchEngine, approximate: Collection
) -> None:
    assert approximate.snapshot.generation.number == 2
    for content in ("", "{", "[]", '{"generation": 2}', '{"generation": 2, "parameters": {"nprobe": 0}}'):
        (approximate.store.path / FILE_NAME).write_text(content)
        with SearchEngine(engine.home.path, readonly=True) as again:
            generation = again.collection("many").snapshot.generation
            assert generation.dense.parameters == generation.manifest.dense["parameters"]
            assert again.collection("many").describe().keys["kind"] == "IVF"


def test_one_that_is_good_enough_keeps_its_parameters(approximate: Collection) -> None:
    before = approximate.snapshot.generation.dense.parameters
    found = approximate.retune()
    assert found is not None
    assert found.recall_before >= TARGET
    assert found.parameters == before
    kept = json.loads((approximate.store.path / FILE_NAME).read_text())
    assert kept["model"] == "v0"
    approximate.refresh(recall_target=0.05)
    parameters = approximate.snapshot.generation.dense.parameters
    assert parameters["nprobe"] < before["nprobe"]


@pytest.mark.parametrize("found", [TARGET + 0.0003, TARGET - 0.0003], ids=["enough", "too little"])
def test_what_is_measured_decides_and_is_told(
    approximate: Collection, monkeypatch: pytest.MonkeyPatch, found: float
) -> None:
    """For the queries of the version, not for those that the index was built by."""
    queries = approximate.encoder.encode_queries([one.text for one in documents(20)])
    monkeypatch.setattr(tuning, "recall", lambda *_: found)
    measured = tuning.retune(approximate.store, "v1", queries, TARGET)
    assert measured is not None
    assert measured.recall_before == round(found, 4)
    assert (measured.measured["recall_at_10"] == round(found, 4)) == (found > TARGET)
    assert measured.measured["recall_at_10"] >= TARGET


@pytest.mark.parametrize(("kind", "approximate"), [("auto", True), ("IVF", True), ("Flat", False)])
def test_auto_may_become_approximate(kind: str, approximate: bool) -> None:
    assert KeyOptions(kind).approximate is approximate


def test_kept_parameters_are_on_the_medium_before_they_have_their_name(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that was promoted is not measured again: without them it would find less after a power cut."""
    path, synced = collection.store.path / FILE_NAME, list[tuple[str, bool]]()
    for name in ("sync_file", "sync_folder"):

        def sync(there: Path, name: str = name) -> None:
            synced.append((name, path.exists()))

        monkeypatch.setattr(durable, name, sync)
    keep_tuned(collection.store, TunedKeys(7, "v1", 0.5, {"nprobe": 9}, {"recall_at_10": 0.9}))
    assert synced == [("sync_file", False), ("sync_folder", True)]
    kept = kept_tuned(collection.store, 7)
    assert kept is not None
    assert kept["parameters"] == {"nprobe": 9}
    assert kept_tuned(collection.store, 8) is None  # they are of that generation


def test_projected_keys_are_compared_as_stored_embeddings_are() -> None:
    chance = np.random.default_rng(3)
    projection, embeddings = chance.standard_normal((2, 6, 6)).astype(np.float32)
    folded = chance.standard_normal((4, 6)).astype(np.float32)
    keys = embeddings @ projection.T
    np.testing.assert_allclose(key_queries(folded, projection) @ keys.T, folded @ embeddings.T, atol=1e-3)
    assert key_queries(folded, None) is folded


def test_in_a_server_it_is_measured_in_another_process(engine: SearchEngine, encoder: HashingEncoder) -> None:
    home = engine.home.path
    engine.close()
    with SearchEngine(home, encoder=lambda: encoder, rebuild_share=0.5) as served:
        made = served.create("many", keys=KeyOptions("IVF", TARGET))
        made.ingest(documents(3000))
        version = turned(made, 3.0)
        made.promote(version)
        made.rebuilder.wait()
        assert made.rebuilder.status()["problem"] is None
        assert made.describe().keys["recall_at_10"] >= TARGET
        assert made.snapshot.generation.dense.parameters == made.describe().keys["parameters"]
        assert json.loads((made.store.path / FILE_NAME).read_text())["model"] == version


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [("recall_target", [1.0, 1e-6], [0.0, 1.0001]), ("memory_bytes", [1, None], [0])],
)
def test_options_of_keys_at_their_bounds(name: str, taken: list[Any], refused: list[Any]) -> None:
    for value in taken:
        assert getattr(KeyOptions(**{name: value}), name) == value
    unchanged: dict[str, Any] = dict.fromkeys(("kind", "recall_target", "memory_bytes"))
    assert KeyOptions("SQ8").changed(**unchanged) == KeyOptions("SQ8")
    for value in refused:
        with pytest.raises(InvalidRequest):
            KeyOptions(**{name: value})
        with pytest.raises(InvalidRequest):
            KeyOptions().changed(**{**unchanged, name: value})

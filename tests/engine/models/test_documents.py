"""Documents that a model brings its own embeddings of: one version, one encoder, whatever is written."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.engine.long_documents import OPTIONS, some
from support.fakes import HashingEncoder
from support.guarded import guarded

from dsearch.attention.retrieval.head import Head
from dsearch.encoder import EncoderChange, EncoderTraining
from dsearch.engine import Collection, SearchEngine, System, make_run, open_layer
from dsearch.engine.indexing.chunking import PassageLengths, encode
from dsearch.engine.models.documents import EncodedDocuments, ModelDocuments
from dsearch.engine.models.encoders import KEPT, ModelEncoders
from dsearch.engine.search.embed import embed, rerank
from dsearch.errors import Conflict, CorruptData, Gone, InvalidRequest
from dsearch.index import Generation
from dsearch.index.manifest import Manifest
from dsearch.types import Document, Query, Stamp

checked = guarded(ModelDocuments, "_loaded")


QUERIES = ["apple bread", "honey ice", "kale number7"]


def change(seed: int = 0) -> EncoderChange:
    """Not a rotation, so that similarities change."""
    generator = torch.Generator().manual_seed(seed)
    return EncoderChange(EncoderTraining("all"), {"weight": torch.randn(32, 32, generator=generator)})


def encoder_of(made: EncoderChange) -> HashingEncoder:
    encoder = HashingEncoder()
    encoder.load_state_dict({"weight": made.tensors["weight"]})
    return encoder


def add(collection: Collection, seed: int = 0) -> str:
    state, made = collection.snapshot, change(seed)
    texts = collection.store.contents(state.rows(np.arange(state.positions)))
    documents = EncodedDocuments(state, encoder_of(made).encode_documents(texts))
    return collection.add_model(Head(32), {"scope": "full"}, encoder=made, documents=documents)


def hits(collection: Collection, model: str | None = None) -> list[list[str]]:
    found = collection.search_batch(QUERIES, mode="dense", limit=30, model=model)
    return [[hit.id for hit in result.hits] for result in found]


def expected(collection: Collection, encoder: HashingEncoder) -> list[list[str]]:
    """By plain arithmetic over everything that is there."""
    documents = collection.store.list(limit=100)
    keys = encoder.encode_documents([document.content for document in documents])
    scores = encoder.encode_queries(QUERIES) @ keys.T
    return [[documents[i].id for i in np.argsort(-row, kind="stable")] for row in scores]


def test_one_version_is_one_encoder(collection: Collection) -> None:
    before = hits(collection)
    version = add(collection)
    own = expected(collection, encoder_of(change()))
    assert own != before
    assert hits(collection) == before
    assert hits(collection, version) == own
    collection.promote(version)
    assert hits(collection) == own
    assert hits(collection, "v0") == before
    assert collection.rollback() == "v0"
    assert hits(collection) == before


def test_what_is_written_is_found_by_every_version(collection: Collection) -> None:
    first, second = add(collection), add(collection, 1)
    collection.promote(first)
    hits(collection, second)
    collection.upsert([Document("new", "apple honey kale"), Document("d3", "changed ice")])
    collection.delete(["d5", "d9"])
    for version, encoder in {
        "v0": HashingEncoder(),
        first: encoder_of(change()),
        second: encoder_of(change(1)),
    }.items():
        found = hits(collection, version)
        assert found == expected(collection, encoder), version
        assert {"new", "d3"} < set(found[0])
        assert not {"d5", "d9"} & set(found[0])


def test_a_refresh_takes_in_what_was_written(collection: Collection, tmp_path: Path) -> None:
    version = add(collection)
    collection.promote(version)
    collection.upsert([Document(f"new{i}", f"apple honey number{i}") for i in range(3)])
    collection.delete(["d2"])
    own = expected(collection, encoder_of(change()))
    numbers = [collection.refresh() for _ in range(3)]
    state = collection.snapshot_for(version)
    assert (len(state.fresh), state.excluded) == (0, None)
    assert collection.snapshot.generation.number == numbers[-1]
    assert state.generation.number == 1_000_004
    assert hits(collection) == own
    folder = collection.store.path / "models" / version / "documents"
    assert sorted(path.name for path in folder.iterdir()) == ["000001", "000003", "000004"]
    collection.upsert([Document("later", "kale")])
    collection.store.purge()
    assert hits(collection) == expected(collection, encoder_of(change()))
    with SearchEngine(tmp_path / "home", readonly=True, encoder=HashingEncoder) as other:
        assert hits(other.collection("food")) == hits(collection)
        assert hits(other.collection("food"), "v0") == hits(collection, "v0")


def test_a_version_of_an_emptied_collection_keeps_the_language(engine: SearchEngine) -> None:
    collection = engine.create("deutsch", language="german")
    collection.ingest([Document("a", "Die Katzen laufen")])
    version = add(collection)
    collection.promote(version)
    collection.delete(["a"])
    collection.refresh()
    assert len(collection.snapshot_for(version).generation) == 0
    collection.upsert([Document("b", "Die Katzen laufen")])
    for word, ids in {"Katze": ["b"], "die": []}.items():
        assert [hit.id for hit in collection.search(word, mode="keyword").hits] == ids, word


def test_long_documents_are_found_by_the_passages_that_the_version_encodes(engine: SearchEngine) -> None:
    """Built with it, written later in one batch with short ones, and taken in by refreshes."""
    collection, made = engine.create("long", passages=OPTIONS), change()
    collection.ingest(some(count=10))
    state, cutting, encoder = collection.snapshot, PassageLengths.of(collection.store), encoder_of(made)
    listed = list(collection.store.documents(state.rows(np.arange(state.positions))))
    documents = EncodedDocuments(state, *encode(encoder, listed, cutting))
    version = collection.add_model(Head(32), {"scope": "full"}, encoder=made, documents=documents)
    collection.promote(version)

    def require_best_passages() -> None:
        listed = collection.store.list(limit=100)
        embeddings, further = encode(encoder, listed, cutting)
        for query in QUERIES:
            (state,) = encoder.encode_queries([query])
            expected: dict[str, tuple[float, int]] = {}
            for place, document in enumerate(listed):
                parts = further[place].embeddings if place in further else embeddings[:0]
                scores = [float(embeddings[place] @ state), *(parts @ state).tolist()]
                expected[document.id] = max(scores), int(np.argmax(scores))
            hits = collection.search(query, mode="dense", limit=50).hits
            assert {hit.id for hit in hits} == set(expected)
            for hit in hits:
                score, ordinal = expected[hit.id]
                assert hit.score == pytest.approx(score, abs=1e-5), (query, hit.id)
                assert (0 if hit.passage is None else hit.passage.ordinal) == ordinal

    require_best_passages()
    later = [Document("short", "kale ice"), *some(3, 4), Document("tiny", "honey")]
    collection.upsert([*later[2:], *later[:2], Document("d9", "no longer long")])
    collection.delete(["d6"])
    require_best_passages()
    for _ in range(2):
        collection.refresh()
        assert len(collection.snapshot_for(version).fresh) == 0
        require_best_passages()


def test_the_versions_that_were_asked_last_stay_in_memory(collection: Collection) -> None:
    versions = [add(collection, seed) for seed in range(KEPT + 1)]
    states = [collection.snapshot_for(version) for version in versions]
    assert collection.snapshot_for(versions[-1]) is states[-1]
    assert collection.snapshot_for(versions[1]) is states[1]
    assert collection.snapshot_for(versions[0]) is not states[0]


def test_a_layer_follows_the_documents_of_its_version(collection: Collection, engine: SearchEngine) -> None:
    version = add(collection)
    layer = open_layer(engine, "food", model=version, mode="dense", candidates=40)
    collection.upsert([Document("new", "apple honey kale"), Document("d3", "changed ice")])
    collection.delete(["d5"])
    layer.refresh()
    states = torch.as_tensor(encoder_of(change()).encode_queries(QUERIES))
    assert layer(states).ids == hits(collection, version)
    assert "new" in layer(states).ids[0]


def test_a_purge_of_what_the_generation_has_leaves_it_whole(collection: Collection) -> None:
    """Its tombstones are gone from the store: what is not there any more is not shown all the same."""
    version = add(collection)
    collection.delete(["d1", "d2"])
    for _ in range(5):
        collection.refresh()
    collection.store.purge()
    collection.promote(version)
    assert hits(collection) == expected(collection, encoder_of(change()))
    assert collection.store.verify().ok


def test_every_path_asks_its_documents(collection: Collection, tmp_path: Path) -> None:
    version = add(collection)
    own = expected(collection, encoder_of(change()))
    by_text = collection.attend(QUERIES, model=version, mode="dense")
    assert [ids[:16] for ids in by_text.ids] == own
    run = make_run(collection, [Query(q, q) for q in QUERIES], System("dense", version))
    assert [[id for id, _ in run[q]] for q in QUERIES] == own
    states = torch.as_tensor(encoder_of(change()).encode_queries(QUERIES))
    layer = open_layer(tmp_path / "home", "food", model=version, mode="dense")
    found = layer(states)
    assert [ids[:16] for ids in collection.ids_at(layer.snapshot, found.positions)] == own
    torch.testing.assert_close(found.weights, by_text.output.weights)
    similar = collection.search(QUERIES[0], model=version, filter={"number": {"lt": 8}}, limit=20)
    assert all(hit.metadata["number"] < 8 for hit in similar.hits)
    assert len(similar.hits) == 8


def test_texts_are_compared_as_its_documents_are(collection: Collection) -> None:
    """Whichever version is live."""
    version, encoder = add(collection), encoder_of(change())
    documents = encoder.encode_documents(["apple ice", "kale"])
    (query,) = encoder.encode_queries(["apple"])
    np.testing.assert_allclose(
        embed(collection, ["apple ice", "kale"], "document", model=version).vectors, documents, atol=1e-6
    )
    result = rerank(collection, "apple", ["apple ice", "kale"], model=version)
    np.testing.assert_allclose(result.scores, (1 + documents @ query) / 2, atol=1e-5)
    assert result.model == version


def test_a_stamp_names_its_state(collection: Collection) -> None:
    version = add(collection)
    stamp = collection.search("apple", model=version).stamp
    assert stamp.generation == 1_000_001
    before = collection.snapshot_at(stamp)
    collection.delete(["d4"])
    assert collection.snapshot_at(stamp) is before
    with pytest.raises(Gone, match="ask again"):
        collection.snapshot_at(Stamp(1_000_001, version, stamp.sequence - 5))


@pytest.mark.parametrize("name", ["embeddings.npy", "manifest.json", "keys.faiss"])
def test_damage_is_refused(collection: Collection, name: str) -> None:
    version = add(collection)
    path = collection.store.path / "models" / version / "documents" / "000001" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptData):
        collection.promote(version)
    with pytest.raises(CorruptData):
        collection.search("apple", model=version)
    assert collection.live_model == "v0"
    assert collection.search("apple").hits


def test_documents_of_another_model_are_refused(collection: Collection) -> None:
    import shutil

    first, second = add(collection), add(collection, 1)
    models = collection.store.path / "models"
    shutil.copytree(models / first / "documents" / "000001", models / second / "documents" / "000002")
    with pytest.raises(CorruptData, match="of another model"):
        collection.promote(second)


def test_what_does_not_fit_is_refused(collection: Collection) -> None:
    state = collection.snapshot
    with pytest.raises(
        InvalidRequest, match=r"embeddings of shape \[3, 32\]; use one a position, \[16, 32\]"
    ):
        collection.add_model(
            Head(32), {}, encoder=change(), documents=EncodedDocuments(state, np.zeros((3, 32), np.float32))
        )
    with pytest.raises(InvalidRequest, match="without the encoder"):
        collection.add_model(Head(32), {}, documents=EncodedDocuments(state, np.zeros((16, 32), np.float32)))
    assert collection.store.models() == []


def test_documents_of_another_build_are_not_those_of_the_version(
    collection: Collection, tmp_path: Path
) -> None:
    """A whole generation in the place of the registered one: each of its own digests agrees."""
    version = add(collection)
    folder = collection.store.path / "models" / version / "documents" / "000001"
    manifest = Manifest.read(folder)
    (folder / "manifest.json").write_bytes(replace(manifest, sequence=manifest.sequence + 1).to_bytes())
    assert len(Generation.open(folder)) == len(collection.snapshot.rows(collection.snapshot.visible()))
    with SearchEngine(tmp_path / "home", readonly=True, encoder=HashingEncoder) as other:
        with pytest.raises(CorruptData, match="of another generation than the store registered"):
            other.collection("food").search("apple", model=version)
        assert other.collection("food").search("apple").hits


def test_a_state_is_named_by_its_generation_and_its_operation(collection: Collection) -> None:
    """Neither alone: a stamp of another state is of no use."""
    version = add(collection)
    for state in (collection.snapshot_for(version), collection.snapshot):
        name = "v0" if state is collection.snapshot else version
        stamp = Stamp(state.generation.number, name, state.sequence)
        assert collection.snapshot_at(stamp) is state
        for generation, sequence in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            other = Stamp(stamp.generation + generation, name, stamp.sequence + sequence)
            with pytest.raises((Conflict, Gone)):
                collection.snapshot_at(other)


def test_a_generation_of_another_version_or_encoder_is_refused(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later one has no digest in the version's record: it is known by what it says of itself."""
    first, second = add(collection), add(collection)  # by the same encoder
    documents, folder = collection._documents, collection.store.path / "models"
    for version in (first, second):
        documents.renew(version)
    mine, other = (sorted((folder / version / "documents").iterdir())[-1] for version in (first, second))
    kept = mine.rename(mine.with_name("kept"))
    shutil.copytree(other, mine)
    documents.forget(first)
    with pytest.raises(CorruptData, match="of another model; promote another version than v1"):
        documents.snapshot(first)
    shutil.rmtree(mine)
    kept.rename(mine)
    assert documents.snapshot(first).generation.folder == mine
    documents.forget(first)
    changed = replace(collection.encoder_identity_of(first), weights_sha256="f" * 64)
    monkeypatch.setattr(ModelEncoders, "identity_of", lambda encoders, version: changed)
    with pytest.raises(CorruptData, match="of another model; promote another version than v1"):
        documents.snapshot(first)

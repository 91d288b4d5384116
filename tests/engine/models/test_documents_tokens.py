"""Tokens of a version's own documents: by its encoder, kept up with writes, matched with its queries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.encoder import EncoderChange, EncoderTraining
from dsearch.engine import Collection, SearchEngine, System, make_run, open_layer
from dsearch.engine.indexing.tokens import encode_rounded
from dsearch.engine.models.documents import EncodedDocuments
from dsearch.engine.options import stop_words_of
from dsearch.engine.search.queries import tokens_of
from dsearch.index.tokens import TokenTable
from dsearch.types import Document, Query

QUERY = "apple honey kale"


def change() -> EncoderChange:
    generator = torch.Generator().manual_seed(0)
    return EncoderChange(EncoderTraining("all"), {"weight": torch.randn(32, 32, generator=generator)})


def trained_encoder() -> HashingEncoder:
    encoder = HashingEncoder()
    encoder.load_state_dict({"weight": change().tensors["weight"]})
    return encoder


@pytest.fixture
def staged(engine: SearchEngine, documents: list[Document]) -> Collection:
    collection = engine.create("staged")
    collection.ingest(documents, second_stage=True)
    return collection


def add(collection: Collection, head: Head | None = None, *, tokens: bool = True) -> str:
    state, encoder, table = collection.snapshot, trained_encoder(), None
    listed = list(collection.store.documents(state.rows(np.arange(state.positions))))
    codec = collection.tokens.codec
    assert codec is not None
    (embeddings, _), of_documents = encode_rounded(
        encoder, listed, None, codec, stop_words_of(collection.store)
    )
    if tokens:
        table = TokenTable.of(codec, of_documents)
    encoded = EncodedDocuments(state, embeddings, tokens=table)
    return collection.add_model(
        head or Head(32), {"scope": "full"}, encoder=change(), documents=encoded, parent="v0"
    )


def codes_by_id(collection: Collection, version: str) -> dict[str, np.ndarray]:
    state = collection.snapshot_for(version)
    visible = state.visible()
    assert state.tokens is not None
    of_documents = [state.tokens.document(at) for at in visible.tolist()]
    ids = collection.ids_at(state, visible[None])[0]
    return {id: of.codes for id, of in zip(ids, of_documents, strict=True) if of is not None}


def expected(collection: Collection) -> dict[str, np.ndarray]:
    listed = collection.store.list(limit=100)
    codec = collection.tokens.codec
    assert codec is not None
    _, made = encode_rounded(trained_encoder(), listed, None, codec, stop_words_of(collection.store))
    return {document.id: of.codes for document, of in zip(listed, made, strict=True)}


def require_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for id, codes in wanted.items():
        np.testing.assert_array_equal(found[id], codes, err_msg=id)


def test_tokens_are_those_of_the_version_s_encoder(staged: Collection) -> None:
    version = add(staged)
    found = codes_by_id(staged, version)
    require_equal(found, expected(staged))
    of_collection = codes_by_id(staged, "v0")
    assert any(found[id].tobytes() != codes.tobytes() for id, codes in of_collection.items())


def test_writes_and_a_refresh_keep_them_up(staged: Collection) -> None:
    version = add(staged)
    staged.promote(version)
    staged.search(QUERY)
    staged.upsert([Document("new", "apple honey kale"), Document("d3", "changed ice")])
    staged.delete(["d5"])
    require_equal(codes_by_id(staged, version), expected(staged))
    staged.refresh()
    state = staged.snapshot_for(version)
    assert len(state.fresh) == 0
    assert state.generation.tokens is not None
    require_equal(codes_by_id(staged, version), expected(staged))


def test_a_search_of_two_stages_matches_them_with_its_query(
    staged: Collection, documents: list[Document], tmp_path: Path
) -> None:
    """The terms are those of a collection that this encoder encoded."""
    version = add(staged)
    answer = staged.search(QUERY, model=version, stages=2, explain=True)
    with SearchEngine(tmp_path / "other", encoder=trained_encoder) as engine:
        other = engine.create("other")
        codec = staged.tokens.codec
        assert codec is not None
        other.tokens.spool.begin(codec)
        other.ingest(documents, second_stage=True)
        wanted = other.search(QUERY, stages=2, explain=True)
    assert [hit.id for hit in answer.hits] == [hit.id for hit in wanted.hits]
    terms = [[hit.explain.second_stage for hit in of.hits if hit.explain] for of in (answer, wanted)]
    assert any(term != 0 for term in terms[0])
    np.testing.assert_allclose(terms[0], terms[1], atol=1e-5)


def test_a_version_with_a_second_stage_has_two_unasked(staged: Collection) -> None:
    staged.promote(add(staged, Head(32).reranking(SecondStage(strength=0.7))))
    hit = staged.search(QUERY, explain=True).hits[0]
    assert hit.explain is not None
    run = make_run(staged, [Query("q", QUERY)], System("hybrid", staged.live_model))["q"]
    assert run == [(hit.id, pytest.approx(hit.score)) for hit in staged.search(QUERY, limit=30).hits]
    parts = hit.explain
    assert parts.second_stage is not None
    assert parts.dense[0] + parts.keyword[0] + parts.second_stage == pytest.approx(hit.score, abs=1e-5)
    marked = staged.search(QUERY, highlight=True, highlight_by="meaning").hits[0]
    assert marked.highlights


def test_a_layer_asks_the_encoder_of_its_version_for_tokens(staged: Collection, engine: SearchEngine) -> None:
    version = add(staged)
    layer = open_layer(engine, "staged", model=version, stages=2)
    (tokens,) = layer.query_tokens([QUERY])
    (wanted,) = tokens_of(staged, [QUERY], staged.snapshot_for(version), version)
    (other,) = tokens_of(staged, [QUERY], staged.snapshot_for(version))
    np.testing.assert_array_equal(tokens.states, wanted.states)
    assert not np.allclose(other.states, wanted.states)


def test_a_version_without_tokens_has_one_stage_as_before(staged: Collection) -> None:
    version = add(staged, tokens=False)
    staged.upsert([Document("new", "apple honey kale")])
    assert staged.snapshot_for(version).tokens is None
    assert staged.search(QUERY, model=version).hits[0].id == "new"

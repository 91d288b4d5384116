"""Collections of embeddings that the caller gives: what is refused, and that everything else works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dsearch.encoder import TextEncoder
from dsearch.engine import Collection, SearchEngine, open_layer
from dsearch.errors import EncoderMismatch, InvalidDocument, InvalidRequest
from dsearch.types import Document, EmbeddedDocument

DOCUMENTS = [Document(id=f"i{i}", text=f"image number{i}", metadata={"label": i % 3}) for i in range(12)]


def vectors(count: int = 12, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def no_encoder() -> TextEncoder:
    raise AssertionError("nothing here needs an encoder")


@pytest.fixture
def images(tmp_path: Path) -> Iterator[Collection]:
    with SearchEngine(tmp_path, encoder=no_encoder) as engine:
        collection = engine.create("images", dimension=8)
        collection.upsert(DOCUMENTS, vectors())
        yield collection


def test_they_are_searched_at_once_and_after_a_rebuild(images: Collection) -> None:
    queries = torch.as_tensor(vectors(3, seed=1))
    for _ in range(2):
        found = images.attend(queries)
        expected = (queries @ torch.as_tensor(vectors()).T).argmax(1)
        assert [ids[0] for ids in found.ids] == [f"i{i}" for i in expected.tolist()]
        images.refresh()
    assert images.search("number7", mode="keyword").hits[0].id == "i7"
    assert images.predict(queries, field="label").predictions[0].kind == "number"


def test_a_layer_opens_on_them(images: Collection, tmp_path: Path) -> None:
    layer = open_layer(tmp_path, "images")
    layer(torch.as_tensor(vectors(2))).context.sum().backward()
    assert layer.head.value_delta.grad is not None


def test_texts_have_no_encoder(images: Collection) -> None:
    for call in (
        lambda: images.search("x"),
        lambda: images.attend(["x"]),
        lambda: images.upsert([Document(id="x", text="x")]),
        lambda: images.ingest([Document(id="x", text="x")]),
    ):
        with pytest.raises(EncoderMismatch, match="has no encoder: its embeddings are given"):
            call()
    assert images.describe().documents == 12
    assert images.describe().pending == 0


def test_embeddings_of_any_length_but_zero_are_scaled_to_one(images: Collection) -> None:
    documents = [Document(id="x", text="x"), Document(id="y", text="y")]
    for factor, shown in ((0.0, "0"), (float("nan"), "nan")):
        given = vectors(2)
        given[1] *= factor
        with pytest.raises(InvalidRequest, match=rf"document 1 \(id 'y'\) has length {shown};"):
            images.upsert(documents, given)
    images.upsert(documents, 7 * vectors(2))
    stored = images.store.embeddings([*images.store.rows_of(["x", "y"]).values()])
    np.testing.assert_allclose(stored, vectors(2), rtol=1e-6)
    images.delete(["y"])
    half = vectors(1).astype(np.float16)
    images.upsert([Document(id="x", text="x")], half)
    assert images.describe().documents == 13


def test_an_embedding_changes_while_its_text_stays(images: Collection) -> None:
    """A tower that learns: each embedding is a new version of the row, searches see the latest alone."""
    same = images.upsert(DOCUMENTS[:2], vectors()[:2])
    assert (same.updated, same.unchanged) == (0, 2)
    moved = vectors()[[0, 5]]
    assert images.upsert(DOCUMENTS[:2], moved).updated == 1
    for _ in range(2):
        found = images.attend(torch.as_tensor(moved[1:]), candidates=100)
        assert set(found.ids[0][:2]) == {"i1", "i5"}
        assert sorted(found.ids[0]) == sorted(document.id for document in DOCUMENTS)
        images.refresh()
    assert images.describe().documents == 12
    assert images.store.verify().ok


def test_an_embedding_stays_with_its_text_where_none_is_supplied(images: Collection) -> None:
    changed = replace(DOCUMENTS[3], metadata={"label": 9})
    assert images.upsert([changed]).updated == 1
    assert images.attend(torch.as_tensor(vectors()[3:4])).ids[0][0] == "i3"
    with pytest.raises(EncoderMismatch):
        images.upsert([replace(DOCUMENTS[3], text="another text")])
    carried = EmbeddedDocument("i3", "another text", embedding=vectors()[4].tolist())
    with pytest.raises(InvalidDocument, match=r"document 1 \(id 'new'\) has no embedding"):
        images.upsert([carried, Document(id="new", text="new")])
    assert images.upsert([carried]).updated == 1
    assert set(images.attend(torch.as_tensor(vectors()[4:5])).ids[0][:2]) == {"i3", "i4"}


def test_a_run_of_documents_with_embeddings_resumes(images: Collection) -> None:
    rows = vectors(20, seed=3)
    run = [EmbeddedDocument(f"r{i}", f"row {i}", embedding=row.tolist()) for i, row in enumerate(rows)]
    assert images.ingest(iter(run)).inserted == 20
    assert images.ingest(iter(run)).unchanged == 20
    assert images.describe().documents == 32
    asked: list[int] = []

    def obsolete() -> list[str]:
        asked.append(images.describe().documents)
        return ["i0", "i1", "unknown"]

    run.append(EmbeddedDocument("last", "last", embedding=rows[0].tolist()))
    assert images.ingest(iter(run), obsolete=obsolete).deleted == 2
    assert asked == [33]  # when all are stored
    assert images.describe().documents == 31
    assert not {"i0", "i1"} & {hit.id for hit in images.search(vector=rows[0], limit=50).hits}


def test_an_embedding_is_refused_where_texts_are_encoded(collection: Collection) -> None:
    carried = EmbeddedDocument("x", "x", embedding=[1.0, 0.0])
    with pytest.raises(InvalidDocument, match="this collection encodes texts; leave it out, or create"):
        collection.upsert([carried])
    dense = collection.store.embeddings(collection.store.rows()[:1])
    document = collection.store.documents(collection.store.rows()[:1])[0]
    with pytest.raises(InvalidRequest, match="has the title and text that are stored"):
        collection.upsert([document], -dense)


def test_a_vector_in_place_of_a_text(images: Collection) -> None:
    hits = images.search(vector=vectors()[7], limit=3).hits
    assert hits[0].id == "i7"
    assert images.search("number7", vector=vectors()[2], explain=True).hits[0].id in ("i2", "i7")
    for options, said in (
        ({"mode": "keyword"}, "mode='keyword' with a vector"),
        ({"stages": 2}, "stages=2 with a vector"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            images.search("number7", vector=vectors()[2], **options)
    with pytest.raises(InvalidRequest, match="the query is empty"):
        images.search()


def test_a_dimension_below_one_is_refused(tmp_path: Path) -> None:
    with (
        SearchEngine(tmp_path, encoder=no_encoder) as engine,
        pytest.raises(InvalidRequest, match="dimension=0; use the length of your embeddings"),
    ):
        engine.create("nothing", dimension=0)

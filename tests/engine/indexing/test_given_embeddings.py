"""Collections of embeddings that the caller gives: what is refused, and that everything else works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch

from dsearch.encoder import TextEncoder
from dsearch.engine import Collection, SearchEngine, open_layer
from dsearch.errors import DimensionMismatch, EncoderMismatch, InvalidRequest
from dsearch.types import Document

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


@pytest.fixture
def unchecked() -> Iterator[None]:
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


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


def test_lengths_other_than_one_are_refused(images: Collection) -> None:
    for factor, shown in ((2.0, "2"), (0.0, "0"), (float("nan"), "nan")):
        given = vectors(2)
        given[1] *= factor
        with pytest.raises(InvalidRequest, match=rf"document 1 \(id 'y'\) has length {shown}; divide each"):
            images.upsert([Document(id="x", text="x"), Document(id="y", text="y")], given)
    half = vectors(1).astype(np.float16)
    images.upsert([Document(id="x", text="x")], half)
    assert images.describe().documents == 13


def test_another_embedding_of_a_stored_text_is_refused(images: Collection) -> None:
    images.upsert(DOCUMENTS[:2], vectors()[:2])
    with pytest.raises(
        InvalidRequest, match=r"document 1 \(id 'i1'\) has the title and text that are stored"
    ):
        images.upsert(DOCUMENTS[:2], vectors()[[0, 5]])
    images.upsert([Document(id="i1", text="image number1, redrawn")], vectors()[5:6])
    found = images.attend(torch.as_tensor(vectors()[5:6]), candidates=100)
    assert found.ids[0][:2] == ["i5", "i1"] or found.ids[0][:2] == ["i1", "i5"]
    images.delete(["i2"])
    images.upsert([DOCUMENTS[2]], vectors()[6:7])


def test_shapes_are_checked(images: Collection, unchecked: None) -> None:
    with pytest.raises(DimensionMismatch, match=r"shape \[1, 8\] for 2 documents; use \[2, 8\]"):
        images.upsert(DOCUMENTS[:2], vectors(1))
    with pytest.raises(DimensionMismatch, match=r"shape \[1, 3\] for 1 documents; use \[1, 8\]"):
        images.upsert(DOCUMENTS[:1], np.ones((1, 3)))


def test_a_dimension_below_one_is_refused(tmp_path: Path) -> None:
    with (
        SearchEngine(tmp_path, encoder=no_encoder) as engine,
        pytest.raises(InvalidRequest, match="dimension=0; use the length of your embeddings"),
    ):
        engine.create("nothing", dimension=0)

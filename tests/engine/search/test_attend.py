"""The note on coverage, and which inputs attention takes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.engine import Collection
from dsearch.engine.search.attend import coverage_note, require_field
from dsearch.errors import EncoderMismatch, InvalidRequest

pytestmark = pytest.mark.usefixtures("unchecked")  # layer and output are stand-ins


def note(*covered: float, documents: int = 500) -> str | None:
    layer: Any = SimpleNamespace(snapshot=SimpleNamespace(documents=documents))
    output: Any = SimpleNamespace(
        covered_mass=torch.tensor(covered, dtype=torch.float64) if covered else None
    )
    return coverage_note(layer, output)


def test_the_query_that_is_covered_least_decides() -> None:
    assert note() is None
    assert note(0.95, 1.0) is None
    assert note(0.99, 0.9, 0.999) == (
        "the candidates hold 90.0% of the attention over all 500 documents; use over='all' for all of it, or "
        "more candidates"
    )
    layer: Any = SimpleNamespace(snapshot=SimpleNamespace(documents=5))
    nothing: Any = SimpleNamespace(covered_mass=torch.zeros(0))
    assert coverage_note(layer, nothing) is None


def test_in_large_collections_it_is_an_estimate() -> None:
    assert "hold 50.0% of" in str(note(0.5, documents=20_000))
    assert "hold about 50.0% of" in str(note(0.5, documents=20_001))


def test_texts_are_compared_in_a_field() -> None:
    with pytest.raises(
        InvalidRequest, match="score='exact_match' of texts compares a field; give match_field"
    ):
        require_field({"score": "exact_match"})
    require_field({"score": "exact_match", "match_field": "title"})  # type: ignore[typeddict-unknown-key]
    require_field({"score": "dot"})


def test_vectors_make_a_dense_layer_and_texts_keep_their_mode(collection: Collection) -> None:
    vectors = torch.nn.functional.normalize(torch.randn(2, 32), dim=-1)
    assert collection.attend(vectors).output.keyword.abs().sum() == 0
    assert collection.attend(["apple"]).output.keyword.abs().sum() > 0


def test_vectors_without_words_keep_a_mode_that_was_asked_for(collection: Collection) -> None:
    vectors = torch.nn.functional.normalize(torch.randn(2, 32), dim=-1)
    with pytest.raises(InvalidRequest, match="mode='keyword' without texts; give the words of each query"):
        collection.attend(vectors, mode="keyword")


def test_among_no_document_there_is_none(collection: Collection) -> None:
    assert {*collection.attend(["apple"], among=["d1", "d2", "unknown"]).ids[0]} == {"d1", "d2"}
    assert not any(collection.attend(["apple"], among=[]).ids[0])


def test_an_encoder_that_was_exchanged_is_compared_again(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.attend(["apple"])
    other = HashingEncoder()
    other._identity = replace(other.identity, weights_sha256="1" * 64)
    monkeypatch.setattr(collection, "_give_encoder", lambda: other)
    with pytest.raises(EncoderMismatch):
        _ = collection.encoder


def test_it_is_told_how_many_documents_share_the_attention(collection: Collection) -> None:
    def sharing(**options: Any) -> list[int]:
        return collection.attend(["apple", "honey"], mode="dense", **options).output.documents.tolist()

    assert sharing(candidates=3) == [3, 3]
    assert sharing(candidates=3, over="all") == [16, 16]
    assert sharing(candidates=3, over="all", filter={"number": {"lt": 5}}) == [5, 5]

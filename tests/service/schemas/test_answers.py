"""The folder of this machine that a document came from is not shown; all else of it is."""

from __future__ import annotations

from typing import Any

import pytest

from dsearch.service.schemas.answers import public_document, public_metadata, search_answer
from dsearch.types import ROOT_KEYS, AttentionSummary, Document, SearchResult, Stamp

FIELD, ROOT = ROOT_KEYS


def test_the_folder_is_left_out_and_the_place_in_it_stays() -> None:
    metadata = {FIELD: {ROOT: "/home/ann", "path": "a.md"}, "year": 7}
    shown = {FIELD: {"path": "a.md"}, "year": 7}
    assert public_metadata(metadata) == shown
    assert metadata[FIELD][ROOT] == "/home/ann"
    document = Document("a", "text", "T", metadata, 1.5)
    assert public_document(document) == Document("a", "text", "T", shown, 1.5)
    assert document.metadata is metadata


@pytest.mark.parametrize("metadata", [{}, {FIELD: "x"}, {FIELD: {"path": "a"}}, {ROOT: "x"}, {FIELD: None}])
def test_without_a_folder_it_is_the_same_object(metadata: dict[str, Any]) -> None:
    assert public_metadata(metadata) is metadata
    document = Document("a", "text", metadata=metadata)
    assert public_document(document) is document


@pytest.mark.parametrize("missing", [0.0, 0.01, 0.5])
def test_an_answer_without_a_part_of_the_documents_says_so(missing: float) -> None:
    result = SearchResult("cat", [], Stamp(1, "v0", 1), AttentionSummary(0, 0.0), 0.0, missing=missing)
    answer = search_answer(result, 1.5)
    told = {name: answer[name] for name in ("partial", "missing") if name in answer}
    assert told == ({"partial": True, "missing": missing} if missing else {})

"""Parts of very large documents: where they end, how they are called, what stays whole."""

from __future__ import annotations

import pytest

from dsearch.corpus import parts
from dsearch.corpus.parts import LARGEST, PART, parts_of
from dsearch.types import Document


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of more than 40 bytes are cut into parts of at most 10."""
    monkeypatch.setattr(parts, "LARGEST", 40)
    monkeypatch.setattr(parts, "PART", 10)


def cut(text: str) -> list[str]:
    return [part.text for _, part in parts_of(Document("a", text))]


def test_a_text_of_the_largest_size_stays_whole() -> None:
    whole = Document("a", "x" * LARGEST, "T")
    assert list(parts_of(whole)) == [(0, whole)]
    assert (LARGEST, PART) == (1 << 20, 1 << 18)
    assert [number for number, _ in parts_of(Document("a", "x" * (LARGEST + 1)))] == [1, 2, 3, 4, 5]


def test_size_is_counted_in_bytes(small: None) -> None:
    assert len(cut("é" * 20)) == 1
    assert cut("é" * 21) == ["é" * 5] * 4 + ["é"]


def test_a_part_ends_at_a_blank_line_else_at_a_line_else_between_words(small: None) -> None:
    rest = "z" * 40
    assert cut(f"a\n\nb\nc d efgh{rest}")[:2] == ["a", "b"]
    assert cut(f"a\nb c d efg{rest}")[0] == "a"
    assert cut(f"a b c d efg{rest}")[0] == "a b c d"
    assert cut(f"abcdefghijk{rest}")[0] == "abcdefghij"


def test_a_part_that_begins_with_a_seam_has_words(small: None) -> None:
    """A seam at the very beginning of a part is no place to end it: that would go on for ever."""
    assert cut(" " + "x" * 45) == ["x" * 9, *["x" * 10] * 3, "x" * 6]
    assert cut("a" * 10 + " " * 40) == ["a" * 10]


def test_parts_have_the_id_and_the_title_of_their_document(small: None) -> None:
    document = Document("a", "x" * 45, "T", {"k": 1})
    numbered = list(parts_of(document))
    assert [number for number, _ in numbered] == [1, 2, 3, 4, 5]
    assert [part.id for _, part in numbered] == ["a", "a#2", "a#3", "a#4", "a#5"]
    assert [part.title for _, part in numbered[:3]] == ["T", "T (2)", "T (3)"]
    assert all(part.metadata == {"k": 1} for _, part in numbered)

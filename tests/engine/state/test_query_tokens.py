"""Tokens of queries that are kept: by encoder and text, the least recently used thrown away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.fakes import HashingEncoder
from support.guarded import guarded

from dsearch.engine.state import caches
from dsearch.engine.state.caches import QueryTokenCache
from dsearch.lru_cache import LruCache

checked = guarded(LruCache, "_entries", "_sizes", free=("__len__",))


class Noting(HashingEncoder):
    """Notes the texts whose tokens it made, and for which side."""

    def __init__(self, name: str = "hashing"):
        super().__init__(name=name)
        self.asked: list[tuple[list[str], str]] = []

    def encode_tokens(self, texts: Sequence[str], role: str = "document") -> Any:
        self.asked.append((list(texts), role))
        return super().encode_tokens(texts, role)


def test_each_text_is_encoded_once_as_a_query() -> None:
    encoder, kept = Noting(), QueryTokenCache()
    first = kept.of(encoder, ["a b", "c", "a b"])
    assert first[0] is first[2]
    assert [len(tokens.states) for tokens in first] == [2, 1, 2]
    again = kept.of(encoder, ["c", "d", "a b"])
    assert (again[0], again[2]) == (first[1], first[0])
    assert encoder.asked == [(["a b", "c"], "query"), (["d"], "query")]
    assert len(kept) == 3


def test_encoding_queries_keeps_their_tokens_beside() -> None:
    encoder, kept = Noting(), QueryTokenCache()
    embeddings = kept.encode(encoder, ["a b", "c"])
    assert embeddings.tolist() == encoder.encode_queries(["a b", "c"]).tolist()
    kept.of(encoder, ["c", "a b"])
    assert len(encoder.asked) == 1


def test_tokens_belong_to_an_encoder() -> None:
    kept, other = QueryTokenCache(), Noting("other")
    kept.of(Noting(), ["a"])
    kept.of(other, ["a"])
    assert other.asked == [(["a"], "query")]
    assert len(kept) == 2


def test_the_least_recently_used_are_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_MOST_QUERIES", 2)
    encoder, kept = Noting(), QueryTokenCache()
    kept.of(encoder, ["a"])
    kept.of(encoder, ["b"])
    kept.of(encoder, ["a"])
    kept.of(encoder, ["c"])
    encoder.asked.clear()
    kept.of(encoder, ["a", "c"])
    assert encoder.asked == []
    kept.of(encoder, ["b"])
    assert encoder.asked == [(["b"], "query")]
    assert len(kept) == 2
    kept.clear()
    assert len(kept) == 0


def test_a_batch_larger_than_what_is_kept_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens are taken next; the batch after it makes room."""
    monkeypatch.setattr(caches, "_MOST_QUERIES", 2)
    encoder, kept = Noting(), QueryTokenCache()
    kept.encode(encoder, ["a", "b", "c d"])
    assert [len(tokens.states) for tokens in kept.of(encoder, ["a", "b", "c d"])] == [1, 1, 2]
    assert encoder.asked == [(["a", "b", "c d"], "query")]
    kept.encode(encoder, ["e"])
    assert len(kept) == 2

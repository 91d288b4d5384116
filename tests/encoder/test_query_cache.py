"""Kept embeddings are those the encoder gave; the cache stays within its bytes."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes import HashingEncoder
from support.patience import LATEST_S
from support.sizes import by_size

from dsearch.encoder import QueryCache
from dsearch.engine import SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.types import Document

TEXTS = st.lists(st.sampled_from(["cat", "dog", "a river", "stone", "ein Fluß"]), max_size=6)


@given(st.lists(TEXTS, min_size=1, max_size=8), st.sampled_from([0, 400, 900, 10_000]))
@settings(max_examples=by_size(40, 400))
def test_states_are_what_the_encoder_gives_and_bytes_are_bounded(
    calls: list[list[str]], max_bytes: int
) -> None:
    encoder, cache = HashingEncoder(8), QueryCache(max_bytes)
    for texts in calls:
        np.testing.assert_array_equal(
            cache.states("a", texts, encoder.encode_queries), encoder.encode_queries(texts)
        )
        assert 0 <= cache.bytes <= max_bytes
    assert cache.hits + cache.misses == sum(map(len, calls))


def test_a_text_is_encoded_once_and_the_oldest_goes_first() -> None:
    asked: list[list[str]] = []

    def encode(texts: Sequence[str]) -> np.ndarray:
        asked.append(list(texts))
        return np.full((len(texts), 4), len(texts[0]), np.float32)

    cache = QueryCache(2 * (1 + 16 + 256))  # two texts of one letter
    cache.states("a", ["x", "y", "x"], encode)
    cache.states("a", ["x"], encode)
    cache.states("a", ["z"], encode)  # y goes: x was asked since
    cache.states("a", ["x", "z"], encode)
    cache.states("a", ["y"], encode)
    assert asked == [["x", "y"], ["z"], ["y"]]
    assert (cache.hits, cache.misses) == (3, 5)


def test_texts_are_told_apart_by_each_character() -> None:
    asked: list[str] = []
    cache = QueryCache(10_000)

    def encode(texts: Sequence[str]) -> np.ndarray:
        asked.extend(texts)
        return np.array([[len(asked) - len(texts) + n] for n in range(len(texts))], np.float32)

    texts = ["us", "US", " us", "us ", ""]
    assert cache.states("a", texts, encode).tolist() == [[0], [1], [2], [3], [4]]
    assert cache.states("a", texts[::-1], encode).tolist() == [[4], [3], [2], [1], [0]]
    assert asked == texts


def test_encoders_do_not_share() -> None:
    cache = QueryCache(10_000)
    one, other = HashingEncoder(4), HashingEncoder(4)
    other.weight.data *= -1
    first = cache.states(("a", 1), ["cat"], one.encode_queries)
    second = cache.states(("a", 2), ["cat"], other.encode_queries)
    np.testing.assert_array_equal(first, -second)


def test_texts_count_by_their_bytes() -> None:
    cache = QueryCache(2 * (2 + 16 + 256))  # two texts of two bytes
    asked: list[str] = []

    def encode(texts: Sequence[str]) -> np.ndarray:
        asked.extend(texts)
        return np.ones((len(texts), 4), np.float32)

    for text in ("ab", "cd", "ab"):
        cache.states("a", [text], encode)
    assert (asked, len(cache), cache.bytes) == (["ab", "cd"], 2, 2 * (2 + 16 + 256))
    cache.states("a", ["\N{SNOWMAN}"], encode)  # one character of three bytes takes the room of both
    assert (len(cache), cache.bytes) == (1, 3 + 16 + 256)
    cache.clear()
    assert (len(cache), cache.bytes) == (0, 0)


def test_what_is_kept_does_not_hold_its_batch() -> None:
    cache, batches = QueryCache(10_000), list[weakref.ref[np.ndarray]]()

    def encode(texts: Sequence[str]) -> np.ndarray:
        encoded = np.ones((len(texts), 4), np.float32)
        batches.append(weakref.ref(encoded))
        return encoded

    cache.states("a", ["x"], encode)
    cache.states("a", ["x", "y"], encode)
    gc.collect()
    assert [batch() for batch in batches] == [None, None]


def test_the_encoder_is_timed_when_it_is_asked() -> None:
    took: list[float] = []
    cache = QueryCache(10_000, on_encode=took.append)
    encoder = HashingEncoder(4)
    for _ in range(3):
        cache.states("a", ["cat"], encoder.encode_queries)
    assert len(took) == 1
    assert took[0] >= 0
    with pytest.raises(InvalidRequest, match="max_bytes=-1; use a number of at least 0"):
        QueryCache(-1)


def test_many_threads() -> None:
    encoder, cache = HashingEncoder(4), QueryCache(5 * (2 + 16 + 256))
    expected = {f"{i:02d}": encoder.encode_queries([f"{i:02d}"])[0] for i in range(20)}
    barrier = threading.Barrier(8)

    def ask(seed: int) -> None:
        barrier.wait(LATEST_S)
        draw = np.random.default_rng(seed)
        for _ in range(100):
            texts = [f"{i:02d}" for i in draw.integers(0, 20, 3)]
            for text, row in zip(texts, cache.states("a", texts, encoder.encode_queries), strict=True):
                np.testing.assert_array_equal(row, expected[text])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert cache.bytes <= cache.max_bytes
    assert cache.bytes == len(cache) * (2 + 16 + 256)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="max_bytes=-1; use a number of at least 0"):
        QueryCache(-1)


def test_a_collection_answers_the_same_with_and_without(tmp_path: Path) -> None:
    words = ["cat", "dog", "river", "stone", "lamp"]
    documents = [Document(str(i), f"{words[i % 5]} {words[i % 3]}") for i in range(30)]
    queries = [*words, "cat dog", "cat"]
    with SearchEngine(tmp_path, encoder=lambda: HashingEncoder(16), query_cache_bytes=1 << 20) as engine:
        collection = engine.create("c")
        collection.ingest(documents)
        answers = []
        for clear in (True, False, True):
            if clear:
                engine.query_cache.clear()
            found = collection.search_batch(queries)
            answers.append([[(hit.id, hit.score, hit.weight) for hit in one.hits] for one in found])
        assert engine.query_cache.hits == len(queries)
        assert answers[0] == answers[1] == answers[2]

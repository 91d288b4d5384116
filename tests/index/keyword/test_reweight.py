"""Weighing a built index anew gives what building it with these numbers gives, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsearch.errors import InvalidRequest
from dsearch.index import KeywordIndex, TokenizedTexts

WORDS = ["wing", "flow", "wing flow", "the", "readCsv", "io.StringIO", "slipstream", "of", "boundary layer"]
texts_of_words = st.lists(
    st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join), min_size=0, max_size=12
)
weightings = st.tuples(st.floats(0.05, 4), st.floats(0, 1))
built_weightings = st.tuples(st.floats(0.2, 3), st.floats(0, 0.95))


@given(texts_of_words, built_weightings, weightings)
def test_weighing_anew_is_building_anew(
    texts: list[str], built: tuple[float, float], wanted: tuple[float, float]
) -> None:
    first = KeywordIndex.build(texts, k1=built[0], b=built[1])
    again = first.weighed(wanted)
    other = KeywordIndex.build(texts, k1=wanted[0], b=wanted[1])
    assert (again.k1, again.b) == wanted
    np.testing.assert_array_equal(again.scores(WORDS), other.scores(WORDS))


def test_a_long_document_among_short_ones_keeps_its_counts() -> None:
    texts = ["wing"] * 200 + ["wing " * 3000 + "flow " * 2999 + " ".join(f"w{i}" for i in range(4000))]
    again = KeywordIndex.build(texts).weighed((0.9, 0.4))
    other = KeywordIndex.build(texts, k1=0.9, b=0.4)
    queries = ["wing", "flow", "w17 flow"]
    np.testing.assert_array_equal(again.scores(queries), other.scores(queries))


def test_a_part_of_a_corpus_is_weighed_with_the_statistics_of_the_whole(tmp_path: Path) -> None:
    texts = ["wing flow", "flow of air", "wing wing", "air", "boundary layer flow", "layer"]
    whole = KeywordIndex.build(texts)
    wanted = whole.weighed((0.6, 0.4)).scores(["wing flow", "air"])
    parts = [whole.part(0, 2), whole.part(2, 6)]
    scores = [part.weighed((0.6, 0.4)).scores(["wing flow", "air"]) for part in parts]
    np.testing.assert_array_equal(np.concatenate(scores, axis=1), wanted)
    parts[1].save(tmp_path)
    loaded = KeywordIndex.load(tmp_path, mmap=True).of_corpus(whole.statistics)
    np.testing.assert_array_equal(loaded.weighed((0.6, 0.4)).scores(["wing flow", "air"]), wanted[:, 2:])


def test_texts_beside_the_index_are_weighed_alike() -> None:
    texts = ["wing flow", "flow of air", "wing wing wing", "air"]
    again = KeywordIndex.build(texts).weighed((0.6, 0.4))
    cut = TokenizedTexts.of(again.tokenizer, texts)
    np.testing.assert_array_equal(again.scores_of_texts("wing flow", cut), again.scores(["wing flow"])[0])


def test_the_own_weighting_is_the_index_itself_and_another_is_kept() -> None:
    index = KeywordIndex.build(["wing flow", "air"])
    assert index.weighed((index.k1, index.b)) is index
    assert index.weighed((0.9, 0.4)).weighed(None) is index
    assert index.weighed((0.9, 0.4)).weighed((0.6, 0.3)) is index.weighed((0.6, 0.3))
    assert index.weighed((0.9, 0.4)) is index.weighed((0.9, 0.4))


def test_two_other_weightings_are_kept_and_no_more() -> None:
    index = KeywordIndex.build(["wing flow", "air"])
    first, second = index.weighed((0.9, 0.4)), index.weighed((0.8, 0.4))
    assert index.weighed((0.9, 0.4)) is first
    assert index.weighed((0.8, 0.4)) is second
    index.weighed((0.7, 0.4))
    assert index.weighed((0.9, 0.4)) is not first


@pytest.mark.parametrize(("k1", "b"), [(0.0, 0.5), (-1.0, 0.5), (float("nan"), 0.5), (1.0, -0.1), (1.0, 1.1)])
def test_what_bm25_is_not_defined_for_is_refused(k1: float, b: float) -> None:
    with pytest.raises(InvalidRequest, match=r"use a number"):
        KeywordIndex.build(["wing"]).weighed((k1, b))


def test_an_index_whose_lengths_count_in_full_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="b = 1"):
        KeywordIndex.build(["wing flow", "air"], b=1.0).weighed((0.9, 0.4))

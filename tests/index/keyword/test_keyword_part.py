"""Part of a keyword index scores its documents as the whole does: n and df are those of the corpus."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sizes import by_size

from dsearch.errors import InvalidRequest
from dsearch.index import CorpusStatistics, KeywordIndex
from dsearch.index.keyword import data

WORDS = ["apple", "bread", "cheese", "dough", "egg", "flour", "the", "a", "readCsv", "x_y", "Zürich"]
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join), max_size=20)
QUERIES = ["apple the flour", "readCsv zebra egg", "x_y x", "the"]


@settings(max_examples=by_size(40, 400))
@given(texts, st.lists(st.integers(0, 20), max_size=4), st.sampled_from([3, 7, 1 << 22]))
def test_the_parts_of_an_index_score_as_it_does(corpus: list[str], cuts: list[int], block: int) -> None:
    whole, before = KeywordIndex.build(corpus), data._POSTINGS_AT_A_TIME
    bounds = sorted([0, len(corpus), *(min(cut, len(corpus)) for cut in cuts)])
    data._POSTINGS_AT_A_TIME = block
    try:
        parts = [whole.part(start, stop) for start, stop in pairwise(bounds)]
    finally:
        data._POSTINGS_AT_A_TIME = before
    together = np.concatenate([part.scores(QUERIES) for part in parts], axis=1)
    assert np.array_equal(together, whole.scores(QUERIES))
    for part, start in zip(parts, bounds, strict=False):
        for at in range(len(part)):
            assert part.explain(QUERIES[0], at) == whole.explain(QUERIES[0], start + at)


def test_a_part_that_was_saved_needs_the_statistics_of_its_corpus(tmp_path: Path) -> None:
    whole = KeywordIndex.build(["apple bread", "apple egg", "flour", "apple cheese cheese"])
    part = whole.part(1, 4)
    part.save(tmp_path)
    loaded = KeywordIndex.load(tmp_path)
    assert not np.array_equal(loaded.scores(["apple"]), whole.scores(["apple"])[:, 1:])
    assert np.array_equal(
        loaded.of_corpus(whole.statistics).scores(["apple"]), whole.scores(["apple"])[:, 1:]
    )
    with pytest.raises(InvalidRequest, match="frequencies of 1 term; this index has"):
        loaded.of_corpus(CorpusStatistics(4, np.array([1])))
    with pytest.raises(InvalidRequest, match="frequencies of 9 terms; this index has"):
        loaded.of_corpus(CorpusStatistics(4, np.ones(9, np.int64)))


def test_phrases_are_found_in_a_part() -> None:
    whole = KeywordIndex.build(["new york", "york new", "in new york", "new"])
    from dsearch.index import parse_query

    found = whole.part(1, 4).matching(parse_query('"new york"'))
    assert found is not None
    assert found.tolist() == [False, True, False]

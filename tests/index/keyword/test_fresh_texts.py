"""Texts added to cut texts: the same as cutting all of them together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsearch.index import KeywordIndex, TokenizedTexts, Tokenizer, parse_query
from dsearch.index.keyword.fresh_texts import LayeredPostings

WORDS = ["apple", "bread", "cheese", "dough", "egg"]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join), max_size=9)


@given(st.lists(TEXTS, max_size=8))
def test_parts_one_after_the_other_are_as_all_at_once(parts: list[list[str]]) -> None:
    tokenizer = Tokenizer()
    grown = TokenizedTexts.of(tokenizer, [])
    every: list[str] = []
    earlier: list[tuple[TokenizedTexts, int]] = []
    for part in parts:
        earlier.append((grown, len(every)))
        grown = grown.extended(part)
        every += part
    whole = TokenizedTexts.of(tokenizer, every)
    assert np.array_equal(grown.lengths, whole.lengths)
    assert grown.leaves == whole.leaves
    assert set(grown.postings) == set(whole.postings)
    assert len(grown.postings) == len(whole.postings)
    for term, (positions, counts) in whole.postings.items():
        assert np.array_equal(grown.postings[term][0], positions)
        assert np.array_equal(grown.postings[term][1], counts)
    for before, count in earlier:  # what was given out before has not changed
        assert np.array_equal(before.lengths, TokenizedTexts.of(tokenizer, every[:count]).lengths)
    index = KeywordIndex.build(["apple bread", "cheese"])
    for query in ("apple", "egg dough cheese", "none"):
        assert np.array_equal(index.scores_of_texts(query, grown), index.scores_of_texts(query, every))
    asked = parse_query('"apple bread" -egg')
    assert np.array_equal(index.matching_texts(asked, grown), index.matching_texts(asked, whole))


def test_layers_are_few() -> None:
    postings = LayeredPostings(())
    for _ in range(1000):
        postings = postings.over({"apple": (np.zeros(1, np.int64), np.ones(1))}, 1)
    assert len(postings._layers) <= 10  # pyright: ignore[reportPrivateUsage]
    assert np.array_equal(postings["apple"][0], np.arange(1000))
    assert "bread" not in postings
    assert postings.over({}, 0) is postings

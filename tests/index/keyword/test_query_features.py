"""What the words of a query say of it, by hand; the same for parts of a corpus and for other k1 and b."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dsearch.attention.fusion_gate import FEATURES as COUNT
from dsearch.index import CorpusStatistics, KeywordIndex
from dsearch.index.keyword import query_terms
from dsearch.index.keyword.query_terms import FEATURES

TEXTS = ["bread cheese", "bread", "bread read_csv", "apple 42"]


def raw(query: str) -> dict[str, float]:
    """The features before they are centred and scaled."""
    [found] = KeywordIndex.build(TEXTS).query_features([query])
    return {
        name: value * spread + usual
        for value, (name, (usual, spread)) in zip(found.tolist(), FEATURES.items(), strict=True)
    }


def test_each_feature_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_terms, "_MOST", 100.0)
    idf = {df: math.log(1 + (4 - df + 0.5) / (df + 0.5)) / math.log(10) for df in (1, 3)}  # idf(0) = log 10
    found = raw("bread bread cheese unknown 42")
    assert found == pytest.approx(
        {
            "length": math.log(5) / math.log(33),  # a term counts once
            "unknown": 1 / 4,
            "mean_idf": (idf[3] + 2 * idf[1]) / 3,
            "least_idf": idf[3],
            "most_idf": idf[1],
            "identifiers": 0.0,
            "digits": 1 / 4,
        },
        abs=1e-6,
    )
    assert raw("the read_csv bread")["identifiers"] == pytest.approx(1 / 2, abs=1e-6)  # "the" is no term


def test_no_feature_is_far_from_what_is_usual() -> None:
    found = KeywordIndex.build(TEXTS).query_features(["nobody has these", "bread", "read_csv 1 2 3"])
    assert np.abs(found).max() == 4


def test_words_that_nobody_has_are_as_rare_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_terms, "_MOST", 100.0)
    found = raw("nobody has these")
    assert (found["unknown"], found["least_idf"], found["most_idf"]) == pytest.approx((1, 1, 1), abs=1e-6)


def test_a_query_without_terms_has_no_features() -> None:
    index = KeywordIndex.build(TEXTS)
    found = index.query_features(["", "the of", "bread"])
    assert np.isnan(found).all(1).tolist() == [True, True, False]
    assert np.isfinite(found[2]).all()
    assert index.query_features([]).shape == (0, len(FEATURES))
    assert np.isfinite(KeywordIndex.build([]).query_features(["bread"])).all()  # of no documents


def test_parts_of_a_corpus_and_other_weightings_say_the_same() -> None:
    index = KeywordIndex.build(TEXTS)
    queries = ["bread cheese", "read_csv 42", "unknown"]
    expected = index.query_features(queries)
    part = index.part(0, 1)
    others = [part, index.weighed((0.5, 0.1))]
    others.append(KeywordIndex(part._data).of_corpus(CorpusStatistics(4, index.statistics.frequencies)))
    for other in others:
        np.testing.assert_array_equal(other.query_features(queries), expected)


def test_the_gate_takes_as_many_as_there_are() -> None:
    assert len(FEATURES) == COUNT

"""Candidate generation over a snapshot of six: which positions the legs propose, and their scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsearch.engine.ranking import candidates
from dsearch.engine.ranking.candidates import SearchLegs, distinct

pytestmark = pytest.mark.usefixtures("unchecked")  # the snapshot is a stand-in

TEXTS = ["first", "second"]
KEYWORDS = np.array([[0.0, 0.5, 0.0, 2.0, 1.0, 0.0], [3.0, 0.0, 0.0, 0.0, 0.0, 0.0]], np.float32)
EMBEDDINGS = np.array([[1, 0], [0, 1], [-1, 0], [0, -1], [0.9, 0.1], [0.5, 0.5]], np.float32)
HIDDEN = 4  # the position of a deleted document
QUERIES = np.array([[[1.0, 0.0]], [[0.0, 1.0]]], np.float32)


class Few:
    """A snapshot of six positions, of which one is not found."""

    positions, documents = 6, 5

    def __init__(self) -> None:
        self.calls: list[str] = []

    def visible(self) -> np.ndarray:
        return np.array([0, 1, 2, 3, 5])

    def best_of(self, scores: np.ndarray, count: int) -> np.ndarray:
        allowed = scores.copy()
        allowed[:, HIDDEN] = -np.inf
        return np.argsort(-allowed, axis=1, kind="stable")[:, :count]

    def best_by_keywords(self, scores: np.ndarray, count: int) -> np.ndarray:
        best = self.best_of(scores, count)
        matched = (np.take_along_axis(scores, best, 1) > 0) & (best != HIDDEN)
        return np.where(matched, best, -1)

    def all_keyword_scores(self, texts: list[str]) -> np.ndarray:
        self.calls.append("all keywords")
        return KEYWORDS[[TEXTS.index(text) for text in texts]]

    def keyword_scores(self, texts: list[str], positions: np.ndarray) -> np.ndarray:
        self.calls.append("some keywords")
        every = KEYWORDS[[TEXTS.index(text) for text in texts]]
        return np.where(positions < 0, 0, np.take_along_axis(every, np.maximum(positions, 0), 1))

    def keyword_candidates(self, texts: list[str], count: int) -> np.ndarray:
        self.calls.append("keyword index")
        return self.best_by_keywords(KEYWORDS[[TEXTS.index(text) for text in texts]], count)

    def dense_scores(self, queries: np.ndarray) -> np.ndarray:
        self.calls.append("all dense")
        return queries @ EMBEDDINGS.T

    def dense_candidates(self, queries: np.ndarray, count: int) -> np.ndarray:
        self.calls.append(f"dense index of {len(queries)}")
        return self.best_of(queries @ EMBEDDINGS.T, count)


def legs(
    mode: Any = "hybrid", count: int = 2, texts: list[str] | None = TEXTS, **more: Any
) -> tuple[Few, SearchLegs]:
    few = Few()
    return few, SearchLegs(few, texts, mode=mode, candidates=count, **more)  # type: ignore[arg-type]


@pytest.fixture(params=["scored", "searched"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the scores of all documents in memory, and by the indexes."""
    if request.param == "searched":
        monkeypatch.setattr(candidates, "SCORES_AT_ONCE", 0)
    return request.param


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("dense", [[0, 5], [1, 5]]),
        ("keyword", [[1, 3], [0, -1]]),
        ("hybrid", [[0, 1, 3, 5], [0, 1, 5, -1]]),
    ],
)
def test_the_union_of_the_legs_is_proposed(mode: str, expected: list[list[int]], way: str) -> None:
    few, search = legs(mode)
    assert search.propose(QUERIES).tolist() == expected
    assert any("index" in call for call in few.calls) == (way == "searched")
    assert (search.dense_of_all is None) == (mode == "keyword" or way == "searched")
    assert (search.keyword_of_all is None) == (mode == "dense" or way == "searched")


def test_the_words_are_looked_up_once_for_all_rounds(way: str) -> None:
    few, search = legs("keyword")
    assert search.propose(QUERIES).tolist() == search.propose(-QUERIES).tolist()
    assert few.calls == (["all keywords"] if way == "scored" else ["keyword index"])


def test_proposals_of_the_memory_are_among_them_each_once() -> None:
    _, search = legs("dense", further=np.array([[2, 5], [-1, -1]]))
    assert search.propose(QUERIES).tolist() == [[0, 2, 5], [1, 5, -1]]


def test_a_collection_no_larger_than_the_candidates_is_proposed_whole() -> None:
    for count in (5, 6):
        few, search = legs("hybrid", count)
        assert search.propose(QUERIES).tolist() == [[0, 1, 2, 3, 5]] * 2
        assert few.calls == []
    assert legs("hybrid", 4)[1].propose(QUERIES).shape[1] > 0
    # Of words only those that match are proposed.
    assert legs("keyword", 6)[1].propose(QUERIES).tolist() == [[1, 3], [0, -1]]


def test_matches_of_a_field_propose_alone() -> None:
    matches = np.log(np.array([[0, 1, 0, 0.5, 1, 0], [0, 0, 1, 0, 0, 0.5]], np.float32) + 1e-9)
    _, search = legs("hybrid", matches=matches)
    assert search.propose(QUERIES).tolist() == [[1, 3], [2, 5]]
    assert search.keyword_scores(np.array([[0], [1]])) is None


def test_a_query_of_zeros_gets_the_first_documents_unsearched(way: str) -> None:
    few, search = legs("dense", 3)
    folded = np.concatenate([QUERIES[:1], np.zeros((1, 1, 2), np.float32)])
    assert search.propose(folded).tolist() == [[0, 1, 5], [0, 1, 2]]
    assert few.calls == ["dense index of 1"]
    few, search = legs("dense", 3)
    assert search.propose(np.zeros_like(folded)).tolist() == [[0, 1, 2]] * 2
    assert few.calls == []
    assert way


def test_all_heads_propose() -> None:
    both = np.array([[[1.0, 0.0], [-1.0, 0.0]]], np.float32)
    few, search = legs("dense", 1, ["first"])
    assert search.propose(both).tolist() == [[0, 2]]
    assert search.dense_of_all is not None
    assert search.dense_of_all.tolist() == [[EMBEDDINGS[:, 0].tolist(), (-EMBEDDINGS[:, 0]).tolist()]]
    assert few.calls == ["all dense"]


@pytest.mark.parametrize("known", [True, False])
def test_keyword_scores_are_zero_at_padding(known: bool) -> None:
    """The last position has a score, which −1 must not stand for."""
    few, search = legs("keyword")
    if known:
        search.score_all_keywords()
        search.score_all_keywords()
        assert few.calls == ["all keywords"]
        assert search.keyword_of_all is not None
        search.keyword_of_all = search.keyword_of_all + np.float32(7)
    positions = np.array([[3, 1, -1], [0, -1, -1]])
    scores = search.keyword_scores(positions)
    more = 7 if known else 0
    assert scores is not None
    assert scores.tolist() == [[2 + more, 0.5 + more, 0], [3 + more, 0, 0]]
    assert few.calls == (["all keywords"] if known else ["some keywords"])


def test_a_dense_search_has_no_keyword_scores() -> None:
    few, search = legs("dense")
    assert search.keyword_scores(np.array([[0], [1]])) is None
    search.score_all_keywords()
    assert search.keyword_of_all is None
    assert few.calls == []


def test_further_candidates_stand_beyond_those_that_were_proposed(way: str) -> None:
    _, search = legs("hybrid", 1)
    proposed = search.propose(QUERIES)
    assert proposed.tolist() == [[0, 3], [0, 1]]
    every, is_extra = search.deeper(QUERIES, proposed, 2, np.array([[2], [-1]]))
    assert every.tolist() == [[0, 1, 2, 3, 5], [0, 1, 5, -1, -1]]
    assert is_extra.tolist() == [[False, True, True, False, True], [False, False, True, True, True]]
    assert search.propose(QUERIES).tolist() == proposed.tolist()  # the legs themselves stay as they were
    assert way


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([[3, 1, 3, -1]], [[1, 3]]),
        ([[3, 1, 3, -1], [2, 2, 2, 2]], [[1, 3], [2, -1]]),
        ([[-1, -1], [-1, -1]], [[], []]),
        ([[-1]], [[]]),
        ([[0, 0, 1], [-1, 0, 5]], [[0, 1], [0, 5]]),
    ],
)
def test_each_position_is_once_in_its_row_and_padding_behind(
    given: list[list[int]], expected: list[list[int]]
) -> None:
    assert distinct(np.array(given)).tolist() == expected

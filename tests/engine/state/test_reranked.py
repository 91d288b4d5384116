"""Scores of a reranker that are kept: what is asked again, and which are thrown away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.guarded import guarded

from dsearch.attention.late_interaction import RerankerIdentity
from dsearch.encoder import reranker as loading
from dsearch.engine.state import caches
from dsearch.engine.state.caches import RerankerScores, identity_of, require_same
from dsearch.errors import RerankerUnavailable
from dsearch.lru_cache import LruCache
from dsearch.store import Passages
from dsearch.types import Document

checked = guarded(LruCache, "_entries", "_sizes", free=("__len__",))


ONE = RerankerIdentity("some/model", "cross-encoder", "a" * 64)
TWO = RerankerIdentity("some/model", "cross-encoder", "b" * 64)


class Model:
    """The score of a text is the number that is its last word; it notes what it was asked."""

    def __init__(self, identity: RerankerIdentity = ONE):
        self.files = SimpleNamespace(name=identity.name, kind=identity.kind, sha256=identity.sha256)
        self.asked: list[tuple[str, list[str]]] = []

    def scores(self, query: str, texts: list[str]) -> np.ndarray:
        self.asked.append((query, list(texts)))
        return np.array([float(text.split()[-1]) for text in texts])


class Texts:
    """A store whose document of row n is "n"; row 7 is long."""

    def documents(self, rows: np.ndarray) -> list[Document]:
        return [
            Document(f"d{row}", f"says {row}" if row != 7 else "1 50 3 4 5 6 7 8 90") for row in rows.tolist()
        ]

    def passages(self, rows: np.ndarray) -> dict[int, Passages]:
        spans = np.array([(0, 1), (2, 4), *((n, n + 1) for n in range(5, 17, 2)), (17, 19)])
        return {7: Passages(spans, np.zeros((8, 2), np.float32))} if 7 in rows else {}


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    """The model that is on this machine."""
    there = Model()
    monkeypatch.setattr(loading, "load_reranker", lambda name, sha256: there)
    return there


def scored(kept: RerankerScores, query: str, *rows: int, identity: RerankerIdentity = ONE) -> list[float]:
    scores = kept.of(identity, query, np.array(rows, np.int64))
    assert scores.dtype == np.float32
    return scores.tolist()


def kept() -> RerankerScores:
    return RerankerScores(Texts())  # type: ignore[arg-type]


def test_only_rows_that_are_not_known_are_asked_for(model: Model) -> None:
    scores = kept()
    assert scored(scores, "q", 3, 1, 3) == [3.0, 1.0, 3.0]
    assert scored(scores, "q", 1, 2, 3) == [1.0, 2.0, 3.0]
    assert scored(scores, "q", 3, 2) == [3.0, 2.0]
    assert [texts for _, texts in model.asked] == [["says 3", "says 1"], ["says 2"]]
    assert len(scores) == 3


def test_scores_belong_to_a_query_and_a_model(model: Model) -> None:
    scores = kept()
    assert scored(scores, "q", 1) == scored(scores, "other", 1) == [1.0]
    assert [query for query, _ in model.asked] == ["q", "other"]
    with pytest.raises(RerankerUnavailable, match=rf"\({'a' * 12}, then {'b' * 12}\)"):
        scored(scores, "q", 1, identity=TWO)


def test_a_long_document_has_the_score_of_its_best_of_the_first_passages(model: Model) -> None:
    assert scored(kept(), "q", 7) == [50.0]
    assert caches.MOST_PASSAGES == 8
    assert len(model.asked[0][1]) == 8


def test_the_oldest_scores_are_thrown_away(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "MAX_SCORES", 3)
    scores = kept()
    scored(scores, "q", 1, 2, 3)
    assert len(scores) == 3
    scored(scores, "q", 4)
    assert len(scores) == 3
    model.asked.clear()
    assert scored(scores, "q", 2, 3, 4) == [2.0, 3.0, 4.0]
    assert model.asked == []
    assert scored(scores, "q", 1) == [1.0]
    assert model.asked == [("q", ["says 1"])]


def test_half_of_a_character_is_a_query_too(model: Model) -> None:
    assert scored(kept(), "\ud800", 1) == [1.0]


def test_a_model_is_named_by_its_files() -> None:
    assert identity_of(Model(TWO)) == TWO  # type: ignore[arg-type]
    model: Any = Model(TWO)
    assert require_same(TWO, model) is model

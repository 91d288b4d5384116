"""Keyword scores of examples are kept up to a size; beyond it each batch computes its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.training import ranking
from dsearch.training.ranking import KeywordScores


class Given:
    """Queries over three documents; `computed` are the texts that were scored, call by call."""

    def __init__(self, texts: Sequence[str], cache: dict[Any, Any] | None = None, b: float = 0.75):
        self.texts, self.cache = texts, {} if cache is None else cache
        self.computed: list[list[str]] = []
        self.snapshot = SimpleNamespace(
            positions=3, keyword=SimpleNamespace(k1=1.2, b=b), all_keyword_scores=self._scores
        )

    def __len__(self) -> int:
        return len(self.texts)

    def cached(self, name: Any, make: Callable[[], Any]) -> Any:
        return self.cache.setdefault(name, make())

    def _scores(self, texts: Sequence[str]) -> np.ndarray:
        self.computed.append(list(texts))
        return np.array([[len(text), ord(text[0]), 1] for text in texts], np.float32)


def scores_of(given: Given, which: Sequence[int], scores: KeywordScores) -> None:
    found = scores(torch.tensor(which))
    assert found.tolist() == [[len(given.texts[i]), ord(given.texts[i][0]), 1.0] for i in which]


@pytest.mark.parametrize(("most", "kept"), [(24, True), (23, False)])
def test_scores_of_a_training_are_kept_if_they_fit(
    monkeypatch: pytest.MonkeyPatch, most: int, kept: bool
) -> None:
    """Two different texts times three documents, four bytes each."""
    monkeypatch.setattr(ranking, "_KEYWORD_CACHE_BYTES", most)
    given = Given(["a", "bb", "a"])
    scores = KeywordScores(given)  # type: ignore[arg-type]
    scores_of(given, [2, 1], scores)
    scores_of(given, [0], scores)
    assert given.computed == ([["a", "bb"]] if kept else [["a", "bb"], ["a"]])


def test_parts_of_examples_share_what_is_kept_and_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "_KEYWORD_CACHE_BYTES", 36)
    given = Given(["a", "bb"])
    KeywordScores(given)  # type: ignore[arg-type]
    part = Given(["bb", "ccc"], given.cache)
    scores_of(part, [0, 1], KeywordScores(part))  # type: ignore[arg-type]
    assert part.computed == [["ccc"]]
    last = Given(["a", "d"], given.cache)  # the fourth text is one too many
    scores_of(last, [1, 0], KeywordScores(last))  # type: ignore[arg-type]
    assert last.computed == [["d", "a"]]


def test_scores_with_another_length_normalisation_are_computed() -> None:
    given = Given(["a"])
    KeywordScores(given)  # type: ignore[arg-type]
    other = Given(["a"], given.cache, b=0.3)
    KeywordScores(other)  # type: ignore[arg-type]
    assert other.computed == [["a"]]

"""Queries of `attend` and `predict`: texts, ids or vectors, one of the three, and how they are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli.terminal import Terminal

from dsearch.cli.commands.attend import _named
from dsearch.errors import InvalidRequest
from dsearch.results import Attention
from dsearch.types import Stamp


def test_queries_are_named_by_their_words_their_ids_or_their_numbers_from_zero() -> None:
    """Numbers of vectors are their places in what was given, as in JSON."""
    assert _named(["river", "stone"], None, None) == ["river", "stone"]
    assert _named(None, ["d1", "d2"], []) == ["d1", "d2"]
    assert _named([], [], [[1.0], [2.0]]) == ["vector 0", "vector 1"]


@pytest.mark.parametrize(
    ("queries", "ids", "vectors", "named"),
    [
        (None, None, None, "neither a query nor --id nor --vectors"),
        (["a"], ["b"], None, "queries and --id"),
        (["a"], None, [[1.0]], "queries and --vectors"),
        (["a"], ["b"], [[1.0]], "queries and --id and --vectors"),
    ],
)
def test_they_come_in_one_way(
    queries: list[str] | None, ids: list[str] | None, vectors: list[list[float]] | None, named: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"^{named}; give one of the three$"):
        _named(queries, ids, vectors)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_every_head_is_drawn_over_the_documents_that_are_shown(
    dsearch: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    pytest.importorskip("matplotlib")
    weights = np.arange(1.0, 7.0).reshape(1, 3, 2)  # [queries, heads, documents]
    answer = Attention(
        ids=[["a", "b"]],
        stamp=Stamp(1, "v0", 1),
        hops=1,
        temperature=1.0,
        mixture=np.ones(3),
        context=np.zeros((1, 1)),
        weights=np.array([[0.75, 0.25]]),
        scores=np.zeros((1, 2)),
        head_weights=weights,
    )
    drawn: list[Any] = []
    monkeypatch.setattr("dsearch.engine.search.gradients.attention_parts", lambda *_, **__: answer)
    monkeypatch.setattr("dsearch.cli.commands.attend.draw_weights", lambda *of: drawn.append(of))
    assert dsearch("create", "t")[0] == 0
    path = tmp_path / "a.png"
    code, _, err = dsearch("attend", "river", "-c", "t", "-k", str(limit), "--heatmap", path)
    assert code == 0, err
    columns = {"a": [1.0, 3.0, 5.0], "b": [2.0, 4.0, 6.0]}
    assert drawn == [(["river"], [dict([*columns.items()][:limit])], path)]

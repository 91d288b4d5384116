"""What a terminal shows of attention and of predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsearch.cli.commands.attend import draw_weights, show_attention, show_prediction
from dsearch.cli.output import draw
from dsearch.errors import InvalidRequest
from dsearch.results import Attention, Evidence, FieldPrediction, Predictions
from dsearch.types import AttentionSummary, Explanation, Hit, SearchResult, Stamp

STAMP = Stamp(3, "v2", 9)
ATTENTION = Attention(
    ids=[["a", "b", "c"], []],
    stamp=STAMP,
    hops=1,
    temperature=1.0,
    mixture=np.ones(1),
    context=np.zeros((2, 1)),
    weights=np.array([[0.6, 0.3, 0.1], [0.0, 0.0, 0.0]]),
    scores=np.zeros((2, 3)),
    candidates=[3, 0],
    covered_mass=np.array([0.875, 0.0]),
    note="use over='all', or more candidates",
)


def test_weights_of_each_query_up_to_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    show_attention(["river", "stone"], ATTENTION, 2)
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "river",
        f"      60.0% {'█' * 12:<20} a",
        f"      30.0% {'█' * 6:<20} b",
        "stone",
        "     nothing is in reach",
    ]
    assert err.splitlines() == [
        "2 of 3 candidates, 87.5% of the attention",
        "0 of 0 candidates, 0.0% of the attention",
        "generation 3, model v2",
        "use --over all, or more --candidates",
    ]


NUMBER = FieldPrediction(
    kind="number", mean=1937.25, spread=2.5, labels=None, evidence=[Evidence("a", 0.5, 1930)],
    candidates=7, without_field=2, covered_mass=0.5,
)  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (NUMBER, "year ≈ 1937.25 ± 2.5"),
        (replace(NUMBER, kind="vector", mean=[1.0, 2.34567]), "year ≈ [1, 2.346]"),
        (replace(NUMBER, kind=None, mean=None), "year is not predicted: no document in reach has it"),
        (
            replace(NUMBER, kind="label", mean=None, labels={str(n): 1 / (n + 1) for n in range(7)}),
            "year 0 100.0%, 1 50.0%, 2 33.3%, 3 25.0%, 4 20.0%",
        ),
    ],
)
def test_a_prediction_and_its_evidence(
    capsys: pytest.CaptureFixture[str], answer: FieldPrediction, line: str
) -> None:
    show_prediction(["river"], "year", Predictions(STAMP, [answer], "note"))
    out, err = capsys.readouterr()
    assert out.splitlines() == [line, f"      50.0% {'█' * 10:<20} a  1930"]
    assert err.splitlines() == [
        "from 7 documents, 2 without year; 50.0% of the attention",
        "generation 3, model v2",
        "note",
    ]


def test_nothing_in_reach_is_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no document is in reach"):
        draw_weights(["river"], [{}], tmp_path / "a.png")


def test_a_query_that_reaches_nothing_has_an_empty_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []

    def heatmap(weights: Any, **_: Any) -> Any:
        drawn.append(weights)
        return SimpleNamespace(savefig=lambda path: None)

    monkeypatch.setattr("dsearch.plot.heatmap", heatmap)
    draw_weights(["none", "river"], [{}, {"a": [0.75, 0.25], "b": [0.5, 0.5]}], tmp_path / "a.png")
    assert drawn == [[[[0.0, 0.0], [0.75, 0.5]], [[0.0, 0.0], [0.25, 0.5]]]]


@pytest.mark.parametrize(("documents", "queries"), [(1, 1), (2, 3), (40, 9)])
def test_a_picture_grows_with_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: int, queries: int
) -> None:
    """A column and a row take the same, so that names stay legible however many there are."""
    drawn: list[dict[str, Any]] = []

    def heatmap(weights: Any, **how: Any) -> Any:
        drawn.append({"weights": weights, **how})
        return SimpleNamespace(savefig=lambda path: None)

    monkeypatch.setattr("dsearch.plot.heatmap", heatmap)
    row = {f"d{i}": [0.75, 0.25] for i in range(documents)}
    draw_weights([f"q{i}" for i in range(queries)], [row] * queries, tmp_path / "a.png")
    explained = Explanation([0.5, 0.5], [0.1, 0.1], [0.75, 0.25], {}, [0.5, 0.5], 0.0)
    hits = [Hit(i + 1, f"d{i}", 0.5, 0.9, "", "x", explain=explained) for i in range(documents)]
    draw(SearchResult("river", hits, STAMP, AttentionSummary(20, 1.5), 7.6), tmp_path / "b.png")
    weights, result = drawn
    assert weights["panel_size"] == pytest.approx((1.5 + 0.35 * documents, 2.6 + 0.35 * queries))
    assert result["panel_size"] == pytest.approx((1.5 + 0.35 * documents, 2.6 + 0.35 * 2))
    assert weights["weights"] == [[[of] * documents] * queries for of in (0.75, 0.25)]
    assert result["weights"] == [[of] * documents for of in (0.75, 0.25)]
    assert (weights["titles"], result["titles"]) == (["head 0", "head 1"], ["river"])
    assert (weights["query_label"], weights["key_label"]) == ("query", "document")

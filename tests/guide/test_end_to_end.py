"""scripts/bench/end_to_end.py, small, with a reader of words in place of the language model."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.paths import SCRIPTS
from support.sizes import by_size


class WordReader:
    """Knows an answer where it stands in the document."""

    def __init__(self, documents: list[Any], folder: str | None):
        self.texts = {one.id: one.text for one in documents}

    def log_likelihoods(self, questions: list[Any], ids: list[list[str]]) -> torch.Tensor:
        rows = [
            [(-0.5 if one.answer in self.texts[id] else -8.0) if id else -torch.inf for id in line]
            for one, line in zip(questions, ids, strict=True)
        ]
        return torch.tensor(rows)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for folder in ("examples", "bench"):
        monkeypatch.syspath_prepend(str(SCRIPTS / folder))
    yield importlib.import_module("end_to_end")
    for name in ("end_to_end", "facts", "reader", "server"):
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_answers_teach_the_search(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "Reader", WordReader)
    towns, held_out, steps = by_size((4, 3, 10), (6, 4, 15))
    sizes = ["--seeds", 1, "--towns", towns, "--held-out", held_out, "--steps", steps]
    monkeypatch.setattr(sys, "argv", ["end_to_end.py", "answers", *map(str, sizes)])
    script.main()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("| ")
    ][1:]
    figures = {row[0]: float(row[1]) for row in rows}
    assert list(figures)[:3] == ["dense, frozen", "keyword, frozen", "hybrid, frozen"]
    for loss in ("marginal", "distilled", "contrastive", "teacher"):
        assert figures[f"hybrid, {loss}"] < figures["hybrid, frozen"]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_http_trains_the_same_head(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "Reader", WordReader)
    sizes = ["--towns", "3", "--held-out", "2", "--steps", "3", "--batch", "6"]
    monkeypatch.setattr(sys, "argv", ["end_to_end.py", "http", *sizes])
    script.main()
    _, _, here, there = (
        [cell.strip() for cell in row.split("|")] for row in capsys.readouterr().out.splitlines()
    )
    assert (here[2], there[2]) == ("SearchLayer", "RemoteSearch")
    assert [float(cell) for cell in there[3:7]] == pytest.approx(
        [float(cell) for cell in here[3:7]], abs=1e-4
    )
    assert float(there[7]) < 1e-4

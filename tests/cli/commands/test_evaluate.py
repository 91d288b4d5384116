"""A baseline is read before the next one is written, and its file may be the same."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from support.cli.terminal import Terminal

from dsearch.cli.commands import evaluate as module
from dsearch.cli.commands.evaluate import _against, read_judgements
from dsearch.training import Baseline


def systems(value: float) -> dict[str, dict[str, dict[str, float]]]:
    values = {f"q{number}": value for number in range(30)}
    return {"hybrid": {"nDCG@10": dict.fromkeys(values, 0.9)}, "trained v1": {"nDCG@10": values}}


def test_a_baseline_is_compared_with_before_it_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    assert _against(None, file, systems(0.5), 0.0) is None
    regression = _against(file, file, systems(0.4), 0.0)
    assert regression is not None
    assert (regression.worse, regression.before, regression.now) == (True, 0.5, pytest.approx(0.4))
    again = Baseline.read(file)
    assert (again.system, set(again.values.values())) == ("trained v1", {0.4})


def test_the_tolerated_fall_is_passed_on(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    _against(None, file, systems(0.5), 0.0)
    regression = _against(file, None, systems(0.45), 0.06)
    assert regression is not None
    assert (regression.worse, regression.tolerated) == (False, 0.06)
    assert set(Baseline.read(file).values.values()) == {0.5}
    assert _against(None, None, systems(0.5), 0.0) is None


def test_judged_queries_have_the_training_split_of_another_one_beside_them(
    beir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = read_judgements(beir, "test")
    assert [query.id for query in test.queries] == [f"q{number}" for number in range(30, 60)]
    assert test.training is not None
    assert list(test.training) == [f"q{number}" for number in range(40)]
    assert test.exclude == {}
    assert read_judgements(beir, "train").training is None
    assert capsys.readouterr().err == ""
    with (beir / "queries.jsonl").open("a") as file:
        file.write("no json\n")
    read_judgements(beir, "test")
    said = capsys.readouterr().err
    assert "left out: 1 line of queries or judgements, such as " in said
    assert "queries.jsonl:61" in said


def test_the_strictest_gate_lets_no_fall_pass(
    dsearch: Terminal, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 is a tolerance, not the lack of one."""

    def worse(*_: object, values: dict[str, object], **__: object) -> SimpleNamespace:
        values |= systems(0.4)
        return SimpleNamespace(to_text=str)

    monkeypatch.setattr(module, "compare_systems", worse)
    better = tmp_path / "better.json"
    _against(None, better, systems(0.5), 0.0)
    dsearch("index", beir, "-c", "t")
    compared = ("evaluate", "-c", "t", "--data", beir, "--baseline", better)
    assert dsearch(*compared)[0] == 0  # it is told, and no gate
    assert dsearch(*compared, "--fail-if-worse", "0")[0] == 3

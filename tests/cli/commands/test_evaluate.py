"""Baselines, versions and folds: what is held against what, and by which queries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.cli.terminal import Terminal
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.cli.commands import evaluate as module
from dsearch.cli.commands.evaluate import Judgements, _against, _cross_validated, read_judgements
from dsearch.engine import SearchEngine, System
from dsearch.evaluation import Run
from dsearch.training import Baseline
from dsearch.types import Query


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


@pytest.fixture
def ranked(dsearch: Terminal, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A collection whose untrained model finds every document, and whose version v1 finds none."""
    assert dsearch("index", beir, "-c", "t")[0] == 0
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        collection = engine.collection("t")
        collection.add_model(Head(collection.store.dimension), {})

    def make_run(_: object, queries: list[Query], system: System, **__: object) -> Run:
        found = {query.id: query.id.replace("q", "d") for query in queries}
        return {id: [(own if system.model == "v0" else "d0", 1.0)] for id, own in found.items()}

    monkeypatch.setattr("dsearch.engine.make_run", make_run)
    return dsearch


@pytest.mark.parametrize(("versions", "difference"), [(("v0", "v1"), -1.0), (("v1", "v0"), 1.0)])
def test_the_second_version_is_held_against_the_first(
    ranked: Terminal, beir: Path, versions: tuple[str, str], difference: float
) -> None:
    told = json.loads(ranked("compare", *versions, "-c", "t", "--data", beir, "--json")[1])
    assert (told["first"], told["second"]) == versions
    assert told["groups"][0]["difference"]["mean"] == difference


def test_pairs_that_are_left_out_count_for_no_version(ranked: Terminal, beir: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("q30\td30\n")
    for more, queries in (((), 30), (("--exclude", tmp_path / "pairs.tsv"), 29)):
        told = json.loads(ranked("compare", "v0", "v1", "-c", "t", "--data", beir, *more, "--json")[1])
        assert told["groups"][0]["queries"] == queries
        assert ("q30" in [id for id, _, _ in told["queries"]]) == (not more)


def test_judgements_of_which_some_are_left_out_calibrate_nothing(
    ranked: Terminal, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pairs.tsv").write_text("q0\td0\n")
    calibrated: list[str] = []
    monkeypatch.setattr(
        "dsearch.training.confidence.calibrate_by_judgements",
        lambda target, version, *_: calibrated.append(version),
    )
    evaluate = ("evaluate", "-c", "t", "--data", beir, "--split", "train")
    out = ranked(*evaluate, "--exclude", tmp_path / "pairs.tsv", "--json")[1]
    assert (json.loads(out)["left_out"], calibrated) == (1, [])
    out = ranked(*evaluate, "--json")[1]
    assert (json.loads(out)["left_out"], calibrated) == (0, ["v0"])


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_the_version_that_was_named_is_evaluated_in_each_respect(
    ranked: Terminal, beir: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    respects: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "dsearch.engine.evaluate.judged_answerability",
        lambda *_, model: respects.append(("answerability", model)),
    )
    monkeypatch.setattr(
        "dsearch.training.confidence.calibrate_by_judgements",
        lambda _, model, *__: respects.append(("confidence", model)),
    )
    named = ("evaluate", "-c", "t", "--data", beir, "--split", "train", "--model", version)
    systems = json.loads(ranked(*named, "--json")[1])["systems"]
    trained = [] if version == "v0" else [f"trained {version}"]
    assert systems == ["dense", "keyword", "hybrid", *trained]
    assert respects == [("answerability", version), ("confidence", version)]


def test_each_fold_is_ranked_by_what_was_trained_on_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[set[str]] = []
    scored: list[set[str]] = []

    def examples(_: object, texts: object, train: Mapping[str, object], exclude: object) -> None:
        trained.append({*train})

    def make_run(_: object, queries: list[Query], **__: object) -> Run:
        scored.append({query.id for query in queries})
        return {query.id: [] for query in queries}

    monkeypatch.setattr("dsearch.training.examples_from_judgements", examples)
    monkeypatch.setattr("dsearch.training.finetune", lambda _: SimpleNamespace(head=None))
    monkeypatch.setattr("dsearch.engine.make_run", make_run)
    ids = [f"q{number}" for number in range(6)]
    (tmp_path / "folds.json").write_text(json.dumps({id: number % 3 for number, id in enumerate(ids)}))
    judged = Judgements([Query(id, "x") for id in ids], {id: {"d": 1.0} for id in ids}, None, {})
    ranks, _ = _cross_validated(None, judged, tmp_path / "folds.json")  # type: ignore[arg-type]
    assert {*ranks} == {*ids}
    assert [part | rest for part, rest in zip(scored, trained, strict=True)] == [{*ids}] * 3
    assert [part & rest for part, rest in zip(scored, trained, strict=True)] == [set()] * 3

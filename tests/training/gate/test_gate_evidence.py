"""scripts/bench/gate.py, smaller: chance and poison do not pass the gate, real gains do."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from support.paths import SCRIPTS

from dsearch.engine import SearchEngine
from dsearch.training import Examples, examples_from_judgements
from dsearch.types import Document

SCRIPT = SCRIPTS / "bench" / "gate.py"
SHARED, OWN = 110, 330


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_gate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["bench_gate"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def topics(engine: SearchEngine) -> Examples:
    """Queries that share no word with their documents, but words with other queries for the same topic."""
    collection = engine.create("topics")
    documents = SHARED + OWN
    collection.ingest(
        [Document(id=f"d{i}", text=f"answer{i % 12} part{i % 5} own{i}") for i in range(documents)]
    )
    wanted = [i // 3 for i in range(3 * SHARED)] + list(range(SHARED, documents))
    queries = {f"q{n:04}": f"question{i % 12} part{i % 5} asked{n}" for n, i in enumerate(wanted)}
    return examples_from_judgements(
        collection, queries, {f"q{n:04}": {f"d{i}": 1.0} for n, i in enumerate(wanted)}
    )


def asked(**given: object) -> argparse.Namespace:
    rows = dict.fromkeys(("simulated", "null_heads", "whole", "resamplings", "memories", "poisoned"), 0)
    nothing = {**rows, "epochs": 1, "null_epochs": 1, "queries": None}
    return argparse.Namespace(**{**nothing, "only": "", "log": None, **given})


def test_what_passes_and_what_does_not(bench: ModuleType, topics: Examples) -> None:
    arguments = asked(null_heads=8, resamplings=10, poisoned=2, epochs=6, null_epochs=1)
    rows = {row.name: row for row in bench.rows_of(topics, arguments)}
    assert rows.pop("real gains, resampled").passed >= 9
    assert rows.pop("clicks poisoned with one document").passed == 0
    assert rows.pop("clicks poisoned with any documents").passed == 0
    assert len(rows) >= 5
    for row in rows.values():
        # 8 trials at alpha = .05: more than 3 have a probability below .001.
        assert row.null, row
        assert row.passed <= 3, row


def test_what_was_tuned_and_trained_on_shuffled_judgements_stays_out(
    bench: ModuleType, topics: Examples
) -> None:
    (row,) = bench.rows_of(topics, asked(whole=1, poisoned=1, only="tuning"))
    assert (row.of, row.passed) == (1, 0), row


def test_an_interrupted_run_goes_on_from_its_log(
    bench: ModuleType, topics: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "gate.jsonl"
    whole = list(bench.rows_of(topics, asked(null_heads=2)))
    begun = bench.rows_of(topics, asked(null_heads=2, log=log))
    first = [next(begun) for _ in range(5)]
    begun.close()
    assert first == whole[:5]
    before = log.read_text()
    assert len(before.splitlines()) == 1 + 5
    assert list(bench.rows_of(topics, asked(null_heads=2, log=log))) == whole
    assert log.read_text().startswith(before)
    assert len(log.read_text().splitlines()) == 1 + 5 * 2
    with pytest.raises(SystemExit, match="other settings"):
        next(bench.rows_of(topics, asked(null_heads=2, epochs=2, log=log)))
    monkeypatch.setattr(bench, "training_code", lambda: "changed since")
    with pytest.raises(SystemExit, match="other training code"):
        next(bench.rows_of(topics, asked(null_heads=2, log=log)))


@pytest.mark.parametrize(("passed", "likely"), [(0, 1.0), (1, 0.4013), (3, 0.0115)])
def test_how_likely_so_many_are_at_alpha(bench: ModuleType, passed: int, likely: float) -> None:
    """1 − .95^10 = .4013; 1 − .5987 − .3151 − .0746 = .0115."""
    row = bench.Row("a kind", passed, 10, 20, True)
    assert row.likely == pytest.approx(likely, abs=5e-4)
    assert str(row) == (
        f"a kind: {passed} of 10 passed ({passed / 10:.3f}, at most {row.highest:.3f}; "
        f"at 0.05 as many or more: p = {row.likely:.3f}), 20 asked for"
    )


def test_the_upper_bound_of_a_share(bench: ModuleType) -> None:
    """None of 10: 1 − .05^(1/10) = .2589; of 30 in 600 published tables have .067."""
    assert bench.Row("a kind", 0, 10, 10, True).highest == pytest.approx(0.2589, abs=1e-4)
    assert bench.Row("a kind", 30, 600, 600, True).highest == pytest.approx(0.067, abs=5e-4)
    assert bench.Row("a kind", 10, 10, 10, True).highest == 1.0


@pytest.mark.parametrize("kind", ["single", "graded"])
def test_simulated_changes_have_the_gain_and_the_deviation_that_they_are_drawn_with(
    bench: ModuleType, kind: str
) -> None:
    for gain, deviation in ((0.0, 0.1), (0.03, 0.12), (0.02, 0.15)):
        changes = bench.moved(np.random.default_rng(0), 200_000, kind, gain, deviation)
        assert changes.mean() == pytest.approx(gain, abs=0.002)
        assert changes.std() == pytest.approx(deviation, abs=0.004)
    assert (bench.moved(np.random.default_rng(0), 1000, "single") == 0).mean() > 0.8
    with pytest.raises(ValueError, match=r"cannot gain 0\.5"):
        bench.moved(np.random.default_rng(0), 10, kind, 0.5)


def test_the_t_test_is_that_of_tables(bench: ModuleType) -> None:
    """t.95 of 9 degrees is 1.833, t.975 of 99 is 1.984; symmetric about 0."""
    assert bench.student_t(1.833, 9) == pytest.approx(0.95, abs=1e-4)
    assert bench.student_t(1.984, 99) == pytest.approx(0.975, abs=1e-4)
    assert bench.student_t(0.0, 30) == pytest.approx(0.5, abs=1e-6)


def test_simulated_rows_need_no_collection(bench: ModuleType) -> None:
    """Of two draws each, what clearly should pass does, and what clearly should not does not."""
    rows = {row.name.removeprefix("simulated: "): row for row in bench.rows_of(None, asked(simulated=2))}
    assert len(rows) == 32
    assert sum(row.null for row in rows.values()) == 10
    assert rows["all gain .03, but 5 unseen of 400 queries +0"].passed == 2
    assert rows["all gain .03, but 60 unseen of 400 queries -0.05"].passed == 0


def test_the_slices_are_large_enough_to_be_judged(bench: ModuleType, topics: Examples) -> None:
    """Else nothing would pass for want of queries, and the test above would say nothing."""
    parts = bench.split_folds(topics, bench.FOLDS, seed=0)
    rest = sorted(set(range(len(topics))) - set(parts[0]))
    held_out = bench.HeldOut(topics.subset(parts[0]), topics.subset(rest))
    assert held_out.seen.sum() >= 50
    assert (~held_out.seen).sum() >= 50

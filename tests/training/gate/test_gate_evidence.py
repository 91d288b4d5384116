"""scripts/bench/gate.py, smaller: chance and poison do not pass the gate, real gains do."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType

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
    nothing = {"null_heads": 0, "whole": 0, "resamplings": 0, "poisoned": 0, "epochs": 1, "null_epochs": 1}
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
        f"a kind: {passed} of 10 passed ({passed / 10:.3f}; at 0.05 as many or more: p = {row.likely:.3f}), "
        "20 asked for"
    )


def test_the_slices_are_large_enough_to_be_judged(bench: ModuleType, topics: Examples) -> None:
    """Else nothing would pass for want of queries, and the test above would say nothing."""
    parts = bench.split_folds(topics, bench.FOLDS, seed=0)
    rest = sorted(set(range(len(topics))) - set(parts[0]))
    held_out = bench.HeldOut(topics.subset(parts[0]), topics.subset(rest))
    assert held_out.seen.sum() >= 50
    assert (~held_out.seen).sum() >= 50

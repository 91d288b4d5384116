"""scripts/bench/gate.py, smaller: chance and poison do not pass the gate, real gains do."""

from __future__ import annotations

import argparse
import importlib.util
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

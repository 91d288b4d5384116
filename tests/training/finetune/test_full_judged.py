"""What scope full trains is judged as it is served, also where documents have several passages."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.training.numbers import long_text
from support.training.observers import Recorder, StopWhen

from dsearch.encoder import Encoder
from dsearch.engine import Collection, SearchEngine, System, make_run
from dsearch.errors import Cancelled, InvalidRequest
from dsearch.evaluation import evaluate
from dsearch.training import Examples, FullOptions, RunFolder, examples_from_judgements, finetune_full
from dsearch.training.gate.gate import Gate, GateReport, judge
from dsearch.training.gate.held_out import Answers, split_folds
from dsearch.training.gate.selection import CheckpointChoice, FoldAnswers, ServingChoice
from dsearch.training.loop.distributed import Processes
from dsearch.types import Document, Mode, Query

PAIRS = 30
QUERIES = {f"q{i:02d}": f"question {i}" for i in range(PAIRS)}
QRELS = {f"q{i:02d}": {f"d{i}": 1.0} for i in range(PAIRS)}
OPTIONS = FullOptions(epochs=3, encoder_learning_rate=1e-2, negatives=1, held_out=3, steps_a_round=3)


@pytest.fixture
def numbers(tmp_path: Path, tiny: Encoder) -> Iterator[Collection]:
    with SearchEngine(tmp_path / "home", encoder=lambda: tiny) as engine:
        collection = engine.create("numbers")
        collection.ingest([Document(id=f"d{i}", text=long_text(i)) for i in range(PAIRS)])
        assert collection.snapshot.passages is not None
        yield collection


@pytest.fixture
def examples(numbers: Collection) -> Examples:
    return examples_from_judgements(numbers, QUERIES, QRELS)


def ranked(collection: Collection, model: str, mode: Mode = "hybrid") -> dict[str, list[tuple[str, float]]]:
    queries = [Query(id, text) for id, text in QUERIES.items()]
    return make_run(collection, queries, System(mode, model), depth=40)


def test_the_gate_judges_what_is_served(numbers: Collection, examples: Examples) -> None:
    observer = Recorder()
    trained = finetune_full(numbers, examples, OPTIONS, observer=observer)
    stages = [step.stage for step in observer.steps]
    assert stages[0] == "train"
    assert stages[-1] == "encode"
    assert trained.record["examples"] == 20
    version = numbers.add_model(
        trained.head, trained.record, encoder=trained.encoder, documents=trained.documents
    )
    names = [sorted(QUERIES)[i] for i in split_folds(examples, 3, 0)[0]]
    for model, told in (("v0", "before"), (version, "after")):
        values = evaluate(ranked(numbers, model), QRELS, ["nDCG@10"])["nDCG@10"]
        expected = np.mean([values[name] for name in names])
        assert getattr(trained.gate.slice("all"), told) == pytest.approx(expected, abs=1e-6), model
    assert trained.gate.verdict in ("cannot tell", "refused")
    state = numbers.snapshot_for(version)
    assert state.passages is not None
    np.testing.assert_array_equal(state.passages.owners, numbers.snapshot.passages.owners)  # type: ignore[union-attr]


def test_the_gate_compares_each_query_with_itself(
    numbers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two queries a document, so that some held-out ones have seen documents: their places show the order."""
    queries = {f"{name}{i:02d}": f"{name} {i}" for i in range(PAIRS) for name in ("question", "request")}
    qrels = {id: {f"d{int(id[-2:])}": 1.0} for id in queries}
    examples = examples_from_judgements(numbers, queries, qrels)
    judged: list[tuple[Answers, Answers]] = []

    def seen(before: Answers, after: Answers, *gate: Gate, seed: int) -> GateReport:
        judged.append((before, after))
        return judge(before, after, *gate, seed=seed)

    monkeypatch.setattr(sys.modules[finetune_full.__module__], "judge", seen)
    trained = finetune_full(numbers, examples, OPTIONS)
    ((before, after),) = judged
    assert 0 < before.seen.sum() < len(before)
    np.testing.assert_array_equal(before.seen, after.seen)
    np.testing.assert_array_equal(np.isnan(before.unseen), np.isnan(after.unseen))
    json.dumps(trained.record, allow_nan=False)


def test_keywords_and_query_keys_weigh_as_held_out_queries_choose(
    numbers: Collection, examples: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head is the one that was chosen; the gate scores each half by the choice of the other half."""
    plain = finetune_full(numbers, examples, OPTIONS)
    assert plain.keyword_factor == plain.record["keyword_factor"] == 1.0  # too few queries to choose by
    assert plain.record["query_keys"] == 0.0
    offered: list[FoldAnswers] = []

    def chosen(folds: list[FoldAnswers]) -> CheckpointChoice:
        offered.extend(folds)
        return CheckpointChoice(
            1, ServingChoice(1.0, 0.0, 2.0, 0.8) if len(offered) == 1 else ServingChoice(1.0, 0.0, 1.6, 0.95)
        )

    monkeypatch.setattr("dsearch.training.gate.selection.chosen", chosen)
    trained = finetune_full(numbers, examples, OPTIONS)
    assert trained.keyword_factor == trained.record["keyword_factor"] == 2.0
    assert trained.record["query_keys"] == 0.8
    learned = plain.head.keyword_weight.item()
    assert trained.head.keyword_weight.item() == pytest.approx(2 * learned)
    whole, *parts = offered
    assert [len(part.now) for part in parts] == [5, 5]
    assert {way.keywords for way in whole.served} == {1.0, 1.3, 1.6, 2.0}
    assert {way.query_keys for way in whole.served} == {0.0, 0.8, 0.9, 0.95}
    told = trained.gate.slice("all").after
    assert told == pytest.approx(np.mean(whole.served[ServingChoice(1.0, 0.0, 1.6, 0.95)].all))
    version = numbers.add_model(
        trained.head, trained.record, encoder=trained.encoder, documents=trained.documents
    )
    values = evaluate(ranked(numbers, version), QRELS, ["nDCG@10"])["nDCG@10"]
    names = [sorted(QUERIES)[i] for i in split_folds(examples, 3, 0)[0]]
    as_chosen = whole.served[ServingChoice(1.0, 0.0, 2.0, 0.8)].all
    np.testing.assert_allclose([values[name] for name in names], as_chosen, atol=1e-6)
    state = numbers.snapshot_for(version)
    assert state.passages is not None
    # Beside the passages that the collection has: a key for each query that was trained on.
    queries = sorted(set(range(PAIRS)) - set(split_folds(examples, 3, 0)[0]))
    owners = np.concatenate([numbers.snapshot.passages.owners, queries])  # type: ignore[union-attr]
    np.testing.assert_array_equal(state.passages.owners, np.sort(owners))


def test_long_documents_are_kept_through_writes_and_refreshes(
    numbers: Collection, examples: Examples
) -> None:
    trained = finetune_full(numbers, examples, OPTIONS)
    version = numbers.add_model(
        trained.head, trained.record, encoder=trained.encoder, documents=trained.documents
    )
    numbers.promote(version)
    numbers.upsert(
        [Document("d3", long_text(33)), Document("new", long_text(36)), Document("short", "answer 5")]
    )
    numbers.delete(["d6", "d7"])
    before = ranked(numbers, version, "dense")  # word statistics are of the last refresh
    hit = next(hit for hit in numbers.search("question 36", limit=40).hits if hit.id == "new")
    assert hit.passage is not None
    numbers.refresh()
    assert len(numbers.snapshot_for(version).fresh) == 0
    after = ranked(numbers, version, "dense")
    for query, hits in before.items():
        assert [id for id, _ in after[query]] == [id for id, _ in hits]
        np.testing.assert_allclose([s for _, s in after[query]], [s for _, s in hits], atol=1e-5)
    again = next(hit for hit in numbers.search("question 36", limit=40).hits if hit.id == "new")
    assert again.passage == hit.passage


def test_it_goes_on_after_a_cancellation(numbers: Collection, examples: Examples, tmp_path: Path) -> None:
    whole = finetune_full(numbers, examples, OPTIONS)
    steps = 0

    def after_four() -> bool:
        nonlocal steps
        steps += 1
        return steps > 4

    with pytest.raises(Cancelled):
        finetune_full(
            numbers, examples, OPTIONS, observer=StopWhen(after_four), run=RunFolder(tmp_path / "run", {})
        )
    run = RunFolder(tmp_path / "run", {}, resume=True)
    done = finetune_full(numbers, examples, OPTIONS, run=run)
    assert done.gate.to_dict() == whole.gate.to_dict()
    assert done.documents is not None
    assert whole.documents is not None
    np.testing.assert_array_equal(done.documents.embeddings, whole.documents.embeddings)
    assert [line["epoch"] for line in run.metrics()] == [1, 2, 3]
    assert all(0 <= line["staleness"] <= 1 for line in run.metrics())


def test_all_processes_stop_where_one_wants_to(numbers: Collection, examples: Examples) -> None:
    @dataclass(frozen=True)
    class Asked(Processes):
        """Another process has been asked to stop."""

        def agree(self, value: bool) -> bool:
            return True

    with pytest.raises(Cancelled, match="in epoch 1, after step 0"):
        finetune_full(numbers, examples, OPTIONS, processes=Asked())


def test_without_queries_held_out_nobody_can_tell(numbers: Collection, examples: Examples) -> None:
    trained = finetune_full(numbers, examples, FullOptions(epochs=1, held_out=0))
    assert trained.gate.verdict == "cannot tell"
    assert trained.record["held_out"] == 0
    with pytest.raises(InvalidRequest, match="documents without the encoder"):
        numbers.add_model(trained.head, {}, documents=trained.documents)

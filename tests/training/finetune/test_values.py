"""Learned values of a field: trained, judged, stored, served, and kept by later versions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder
from support.training.observers import StopWhen
from support.training.topics import queries_of, topics_in
from support.training.valued import COUNT, DIMENSION, plane_in, with_values

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.learned_score import new_score
from dsearch.encoder import EncoderChange, EncoderTraining
from dsearch.engine import (
    Collection,
    EncodedDocuments,
    GradientQuery,
    SearchEngine,
    attention_parts,
    calls,
)
from dsearch.engine.models.files import READOUT
from dsearch.errors import Cancelled, InvalidRequest
from dsearch.jobs import TrainingJob, TuningJob
from dsearch.training import (
    Gate,
    Registration,
    finetune_values,
    remember,
    run_training,
    run_tuning,
    save_model,
    value_examples,
)
from dsearch.training import values as task
from dsearch.training.candidate import Recorded
from dsearch.training.finetune import values as finetune
from dsearch.training.finetune.values import ValueScores, judge_values
from dsearch.training.gate.gate import judge
from dsearch.training.gate.held_out import Answers
from dsearch.training.loop.run_folder import RunFolder
from dsearch.training.options import ValueOptions
from dsearch.training.values import (
    ValueData,
    ValuesTask,
    measures_of_values,
    predicted_by,
    scores_of_values,
    served_by,
)
from dsearch.types import Document

FAST = ValueOptions(epochs=4, learning_rate=3e-3)
ONCE = ValueOptions(epochs=1)
JOB = TrainingJob(objective="context", field="number", epochs=4, learning_rate=3e-3)
TEXTS, JUDGEMENTS = queries_of()


@pytest.fixture
def plane(engine: SearchEngine) -> Collection:
    return plane_in(engine)


def learned(collection: Collection, job: TrainingJob = JOB) -> Registration:
    return run_training(collection, job).register(collection, job)


def states_of(collection: Collection, count: int) -> torch.Tensor:
    return torch.as_tensor(collection.snapshot.embeddings(np.arange(count)))


def test_learned_values_beat_stored_ones_and_are_served_as_judged(plane: Collection, tmp_path: Path) -> None:
    done = run_training(plane, JOB)
    trained = done.result
    assert trained.before is not None  # type: ignore[union-attr]
    assert trained.after["r2"] > trained.before["r2"] + 0.05  # type: ignore[union-attr]
    registered = done.register(plane, JOB)
    assert registered.live == plane.live_model == "v1", trained.gate.to_text()
    assert trained.head.value_delta.abs().sum() > 0  # W_V has learned
    record = plane.store.model("v1").record
    assert (record["format"], record["scope"]) == (12, "values")
    assert record[READOUT] == {"field": "number", "kind": "number", "labels": None}
    assert json.loads(json.dumps(record))["values"]["after"]["r2"] == trained.after["r2"]  # type: ignore[union-attr]

    head, states = plane.head("v1"), states_of(plane, 3)
    with torch.no_grad():
        keys = states_of(plane, COUNT)
        logits = head.queries(states)[:, 0] @ head.keys(keys).T / head.temperature
        values = (keys + keys @ head.value_delta.T) @ head.output.weight.T + head.output.bias  # type: ignore[union-attr]
        mean = logits.softmax(-1) @ values
        spread = (logits.softmax(-1) @ (values - 50).square() - (mean - 50).square()).sqrt()
    for over in ("all", "candidates"):
        answer = plane.predict(states, field="number", over=over, candidates=COUNT, mode="dense")
        assert answer.stamp.model == "v1"
        for query, one in enumerate(answer.predictions):
            assert (one.kind, one.values, one.without_field) == ("number", "learned", 0)
            assert one.mean == pytest.approx(mean[query].item(), abs=1e-3)
            assert one.spread == pytest.approx(spread[query].item(), abs=1e-2)
    found = plane.attend(states, over="all", mode="dense").output
    assert found.output is not None
    torch.testing.assert_close(found.output, mean, atol=1e-3, rtol=1e-4)
    parts = attention_parts(plane, GradientQuery(states=states))
    assert parts.output is not None
    assert parts.output.shape == (3, 1)
    assert plane.predict(states, field="side").predictions[0].values == "stored"  # another field
    with SearchEngine(tmp_path / "home", readonly=True, encoder=HashingEncoder) as other:
        again = other.collection("plane").predict(states, field="number", over="all", mode="dense")
        assert again.predictions[0].mean == pytest.approx(mean[0].item(), abs=1e-3)


def test_served_predictions_are_those_that_the_gate_saw(plane: Collection) -> None:
    """The served path is the training path: `predict` gives what the gate compared."""
    examples = value_examples(plane, "number")
    data, asked = ValueData(examples, keywords=False), np.arange(20)
    evidence = np.arange(20, COUNT)
    head = ValuesTask(data, FAST, Head(DIMENSION), evidence).train()
    pooled = served_by(data, Head(DIMENSION), asked, evidence)
    expected = predicted_by(head, pooled.contexts, "number")[:, 0] * examples.scale[0] + examples.centre[0]
    states = states_of(plane, 20)
    finetune._in_own_units(head, examples)
    readout = {"field": "number", "kind": "number", "labels": None}
    version = plane.add_model(head, {READOUT: readout})
    plane.delete([f"d{n}" for n in range(20)])
    options: Any = {"field": "number", "mode": "dense"}
    for model, wanted in ((version, expected), ("v0", None)):
        predicted = plane.predict(states, model=model, **options).predictions
        wanted = pooled.stored[:, 0] * examples.scale[0] + examples.centre[0] if wanted is None else wanted
        np.testing.assert_allclose(np.array([one.mean for one in predicted]), wanted, atol=2e-3)


def test_learned_values_change_no_search(engine: SearchEngine) -> None:
    topics = topics_in(engine)
    topics.ingest([Document(f"n{n}", f"alpha{n % 20} beta{n}", metadata={"n": n}) for n in range(60)])
    job = TrainingJob(queries=TEXTS, judgements=JUDGEMENTS, epochs=2, heads=2, accept=True)
    searched = learned(topics, job).version
    remember(topics, {"q": "a wording of nobody"}, {"q": {"d3-0": 1.0}}, accept=True)
    live = topics.live_model
    before = topics.search_batch([*TEXTS.values(), "a wording of nobody"])
    drift, calibration = topics.store.model(live).record.get("training_queries"), topics.calibrations.of(live)
    registered = learned(topics, TrainingJob(objective="context", field="n", epochs=1, accept=True))
    assert (registered.parent, registered.live) == (live, topics.live_model)
    after = topics.search_batch([*TEXTS.values(), "a wording of nobody"])
    for one, other in zip(before, after, strict=True):
        assert [(hit.id, hit.score) for hit in one.hits] == [(hit.id, hit.score) for hit in other.hits]
    record = topics.store.model(registered.version).record
    assert (record.get("training_queries"), topics.calibrations.of(registered.version)) == (
        drift,
        calibration,
    )
    head, old = topics.stored_head(registered.version), topics.stored_head(searched)
    assert torch.equal(head.query_in, old.query_in)
    assert topics.rollback() == live


def test_a_later_version_keeps_the_values(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it learned from: judgements, a tuning, a loss of its own, or nothing."""
    topics = topics_in(engine)
    topics.ingest([Document(f"n{n}", f"alpha{n % 20} beta{n}", metadata={"n": n}) for n in range(60)])
    values = learned(topics, TrainingJob(objective="context", field="n", epochs=1, accept=True)).version
    head, readout = topics.stored_head(values), topics.store.model(values).record[READOUT]
    monkeypatch.setattr(Recorded, "passed", property(lambda _: True))

    def trained() -> str:
        return learned(topics, TrainingJob(queries=TEXTS, judgements=JUDGEMENTS, epochs=1)).version

    def tuned() -> str:
        job = TuningJob(queries=TEXTS, judgements=JUDGEMENTS)
        return run_tuning(topics, job).register(topics, job).version

    def remembered() -> str:
        return remember(topics, {"q": "of nobody"}, {"q": {"d3-0": 1.0}}, accept=True).model

    def saved() -> str:
        moved = Head(topics.store.dimension)
        torch.nn.init.normal_(moved.key_delta, std=0.1)
        return save_model(topics, moved, parent=values).version

    for make in (trained, tuned, saved, remembered):
        topics.promote(values)
        version = make()
        record = topics.store.model(version).record
        assert record["scope"] != "values"
        assert record[READOUT] == readout, make
        assert torch.equal(topics.stored_head(version).value_delta, head.value_delta)
        assert topics.predict(["alpha3"], field="n", model=version).predictions[0].values == "learned"
    uploaded = topics.add_model(topics.stored_head(values), {"scope": "uploaded"}, parent=values)
    assert topics.store.model(uploaded).record[READOUT] == readout
    own = Head(topics.store.dimension)
    own.open_output(1)
    own = topics.add_model(own, {"scope": "uploaded"}, parent=values)
    assert READOUT not in topics.store.model(own).record  # values of its own, of whatever they are


def test_values_behind_documents_of_a_versions_own_keep_these(collection: Collection) -> None:
    """Scope full embeds the documents by an encoder of its own, and later writes too."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(32, 32, generator=generator)
    change, encoder = EncoderChange(EncoderTraining("all"), {"weight": weight}), HashingEncoder()
    encoder.load_state_dict({"weight": weight})
    state = collection.snapshot
    texts = collection.store.contents(state.rows(np.arange(state.positions)))
    own = EncodedDocuments(state, encoder.encode_documents(texts))
    full = collection.add_model(Head(32), {"scope": "full"}, encoder=change, documents=own)
    collection.promote(full)
    before = collection.search("number3 and number7", limit=10)
    values = learned(collection, replace(JOB, accept=True)).version
    after = collection.search("number3 and number7", limit=10)
    assert (before.stamp.model, after.stamp.model) == (full, values)
    assert [hit.id for hit in after.hits] == [hit.id for hit in before.hits]
    np.testing.assert_allclose(
        [hit.score for hit in after.hits], [hit.score for hit in before.hits], atol=1e-5
    )
    assert collection.predict(["number3"], field="number").predictions[0].values == "learned"
    collection.upsert([Document("later", "a later number17", metadata={"number": 17})])
    assert collection.search("number17").hits[0].id == "later"
    # Its values are of other embeddings, so a version without them does not take them over.
    collection.promote(full)
    head = collection.add_model(Head(32), {"scope": "head"}, parent=values)
    assert READOUT not in collection.store.model(head).record


def test_values_of_another_field_replace_them(plane: Collection) -> None:
    learned(plane)
    registered = learned(plane, replace(JOB, field="side", accept=True))
    assert (registered.parent, plane.live_model) == ("v1", "v2")
    assert plane.store.model("v2").record[READOUT]["field"] == "side"
    assert plane.predict(states_of(plane, 1), field="number").predictions[0].values == "stored"


def test_values_behind_a_learned_score_are_refused(plane: Collection) -> None:
    plane.promote(plane.add_model(Head(DIMENSION).scoring_by(new_score("general", DIMENSION)), {}))
    with pytest.raises(InvalidRequest, match="v1, which is live, has a learned score"):
        run_training(plane, JOB)


def test_another_version_that_became_live_meanwhile_stays(plane: Collection) -> None:
    done = run_training(plane, JOB)
    plane.promote(plane.add_model(Head(DIMENSION), {}))
    registered = done.register(plane, JOB)
    assert (registered.live, registered.outdated_by, plane.live_model) == (None, "v1", "v1")


def test_of_too_few_documents_none_is_held_out(engine: SearchEngine) -> None:
    examples = value_examples(with_values(engine, "t", [float(n) for n in range(12)]), "f")
    assert finetune_values(examples, replace(ONCE, folds=7)).before is None
    assert finetune_values(examples, replace(ONCE, folds=6)).before is not None


def test_held_out_documents_are_no_evidence(plane: Collection) -> None:
    """Labels by chance cannot be predicted; a document among its own evidence would be."""
    examples = value_examples(plane, "side")
    shuffled = replace(examples, values=np.random.default_rng(0).permutation(examples.values))
    trained = finetune_values(shuffled, FAST)
    assert not trained.gate.passed
    assert trained.after is not None
    assert trained.after["accuracy"] < 0.65


def test_a_fold_is_neither_learned_from_nor_evidence(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = value_examples(with_values(engine, "t", [float(n) for n in range(12)]), "f")
    asked: list[Any] = []
    served: list[tuple[list[int], list[int]]] = []

    class Noted(ValuesTask):
        def __init__(self, data: ValueData, options: ValueOptions, start: Head, rows: Any = None) -> None:
            super().__init__(data, options, start, rows)
            asked.append(None if rows is None else rows.tolist())

    def noted(data: ValueData, head: Head, rows: Any, evidence: Any) -> Any:
        served.append((rows.tolist(), evidence.tolist()))
        return served_by(data, head, rows, evidence)

    monkeypatch.setattr(finetune, "ValuesTask", Noted)
    monkeypatch.setattr(finetune, "served_by", noted)
    finetune_values(examples, replace(ONCE, folds=3))
    assert asked == [*(evidence for _, evidence in served), None]  # all of them, for what is served
    assert sorted(row for rows, _ in served for row in rows) == [*range(12)]
    assert all(sorted([*rows, *evidence]) == [*range(12)] for rows, evidence in served)


def test_a_fold_is_judged_at_the_checkpoint_that_the_others_choose(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fold is far better trained, the other far better at the start: chosen by itself each would gain."""
    examples = value_examples(with_values(engine, "t", [float(n) for n in range(12)]), "f")
    gains, start = np.linspace(1, 2, 6), np.zeros((6, 1), np.float32)
    ends = (np.full((6, 1), 0.25, np.float32), np.full((6, 1), 0.75, np.float32))
    folds = [
        finetune._Fold(
            np.arange(6) + 6 * number, np.zeros(6), start, np.stack([np.zeros(6), gain]), [start, end]
        )
        for number, (gain, end) in enumerate(zip((gains, -3 * gains), ends, strict=True))
    ]
    monkeypatch.setattr(finetune._Session, "folds", lambda *_: folds)
    monkeypatch.setattr(finetune, "_CHECKPOINTS", 1)
    judged: list[ValueScores] = []

    def noted(scores: Any, *more: Any, **options: Any) -> Any:
        judged.append(scores)
        return judge_values(scores, *more, **options)

    monkeypatch.setattr(finetune, "judge_values", noted)
    finetune_values(examples, ONCE)
    expected = scores_of_values(examples, np.arange(12), np.concatenate([start, ends[1]]))
    np.testing.assert_array_equal(judged[0].after, expected)


def test_learned_values_have_to_beat_the_same_answer_for_all() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 60)
    before, better = np.zeros(60), 0.5 + noise
    options: Any = {"measures": None, "measure": "R²", "seed": 0}
    assert judge_values(ValueScores(before, better, before), Gate(), **options).passed
    constant = judge_values(ValueScores(before, better, better + 0.1), Gate(), **options)
    assert not constant.passed
    assert "always giving the mean" in constant.reason


def test_an_accuracy_that_falls_refuses_them() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 60)
    scores = ValueScores(np.zeros(60), 0.5 + noise, np.zeros(60))
    for fall, passes in ((0.01, True), (0.05, False)):
        measures = {"accuracy": 0.9}, {"accuracy": 0.9 - fall}
        report = judge_values(scores, Gate(margin=0.02), measures=measures, measure="log share", seed=0)
        assert report.passed == passes


def test_null_labels_pass_the_gate_no_more_often_than_alpha() -> None:
    """Differences by chance alone, judged as values are: one-sided, two hundred times."""
    generator, passed = np.random.default_rng(0), 0
    for trial in range(200):
        before = generator.normal(size=80)
        report = judge(
            Answers.of_scores(before),
            Answers.of_scores(before + generator.normal(0, 0.1, 80)),
            Gate(),
            samples=500,
            seed=trial,
        )
        passed += report.passed
    assert passed <= 20  # 10 expected; above 20 has a probability of .001


def test_keywords_count_as_in_the_search_of_the_version(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    class Noted(ValueData):
        def __init__(self, examples: Any, **options: Any) -> None:
            super().__init__(examples, **options)
            seen.append(examples.snapshot)

    monkeypatch.setattr(finetune, "ValueData", Noted)
    start = Head(32)
    start.weigh_keywords(0.5, 0.4)
    finetune_values(value_examples(collection, "number"), ONCE, start=start)
    own = collection.snapshot.with_bm25((0.5, 0.4))
    assert (seen[0].all_keyword_scores(["number3"]) == own.all_keyword_scores(["number3"])).all()


def test_documents_are_pooled_by_the_attention_of_the_version(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, head, which = value_examples(collection, "number"), Head(32), np.array([3, 8, 15])
    with torch.no_grad():
        head.query_delta += 0.1 * torch.randn(head.query_delta.shape)
    data = ValueData(examples, keywords=True)
    found = data.pooled(head, np.arange(3), which)
    keyword = torch.as_tensor(collection.snapshot.all_keyword_scores(examples.texts)[:3][:, which])
    corpus = data.corpus[which]
    logits = (head.queries(data.corpus[:3])[:, 0] @ corpus.T + keyword) / head.temperature
    torch.testing.assert_close(found.contexts, (logits.softmax(-1) @ corpus).detach())
    torch.testing.assert_close(found.stored, (logits.softmax(-1) @ data.values[which]).detach())
    dense = ValueData(examples, keywords=False).pooled(head, np.arange(3), which)
    assert not torch.allclose(dense.contexts, found.contexts)
    monkeypatch.setattr(task, "_LOGITS_AT_A_TIME", 1)
    torch.testing.assert_close(data.pooled(head, np.arange(3), which).contexts, found.contexts)
    monkeypatch.setattr(task, "CANDIDATES", 2)
    assert not torch.allclose(served_by(data, head, np.arange(3), np.arange(16)).contexts, found.contexts)


def test_a_sample_of_many_documents_is_learned_from(collection: Collection) -> None:
    data = ValueData(value_examples(collection, "number"), keywords=False)
    assert len(ValuesTask(data, replace(ONCE, most_examples=5), Head(32))._contexts) == 5


def test_the_error_is_in_the_units_of_the_field(collection: Collection) -> None:
    examples = value_examples(collection, "number")
    asked = np.arange(len(examples))
    measured = measures_of_values(examples, asked, examples.values + np.float32(0.5))
    assert measured["rmse"] == pytest.approx(0.5 * float(examples.scale[0]), rel=1e-5)
    assert float(examples.scale[0]) > 2
    assert measured["r2"] == pytest.approx(0.75, rel=1e-5)
    assert scores_of_values(examples, asked, examples.values).tolist() == [1.0] * len(examples)


def test_a_run_goes_on_to_the_same_values(plane: Collection, tmp_path: Path) -> None:
    examples = value_examples(plane, "side")
    whole = finetune_values(examples, FAST)
    steps = iter(range(1000))
    with pytest.raises(Cancelled):
        finetune_values(
            examples,
            FAST,
            run=RunFolder(tmp_path / "run", {}),
            observer=StopWhen(lambda: next(steps) > 15),
        )
    resumed = finetune_values(examples, FAST, run=RunFolder(tmp_path / "run", {}, resume=True))
    for name, tensor in whole.head.state_dict().items():
        assert torch.equal(tensor, resumed.head.state_dict()[name])
    assert resumed.record["gate"] == whole.record["gate"]


def test_wrong_options_are_refused() -> None:
    for wrong in ({"epochs": 0}, {"learning_rate": 1.0}, {"folds": 1}, {"decay": -1.0}):
        with pytest.raises(InvalidRequest, match=next(iter(wrong))):
            ValueOptions(**wrong)  # type: ignore[arg-type]
    for given in ({"objective": "context"}, {"field": "price"}):
        with pytest.raises(InvalidRequest, match="belong together"):
            TrainingJob(**given).check()
    for more in ({"heads": 2}, {"queries": TEXTS, "judgements": JUDGEMENTS}, {"scope": "query"}):
        with pytest.raises(InvalidRequest, match=f"leave out {[*more][-1]}"):
            replace(JOB, **more).check()


def test_versions_are_listed_with_their_field(plane: Collection) -> None:
    learned(plane)
    listed = {one.version: one for one in calls.list_models(plane).models}
    assert (listed["v1"].live, listed["v1"].record["field"], listed["v1"].problem) == (True, "number", None)

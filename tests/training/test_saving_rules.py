"""What `save_model` and `JobResult` go by where there is a choice: parent, live version, what is left out."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.training.topics import queries_of, topics_in

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.learned_score import new_score
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.engine import Collection, EncodedDocuments, SearchEngine, open_layer
from dsearch.errors import Conflict, InvalidRequest
from dsearch.jobs import ExampleScores, JudgedQueries, SavingJob, TrainingJob
from dsearch.training import JobResult, save_model
from dsearch.training.registry import Registration, summary
from dsearch.training.saving import judge_layer, judge_version, unwrapped

TEXTS, JUDGED = queries_of()
SCORES = [0.1 * n for n in range(12)]
BETTER = [0.11 * n + 1 for n in range(12)]


@pytest.fixture
def topics(engine: SearchEngine) -> Collection:
    """With a version v1 that does not answer."""
    topics = topics_in(engine)
    topics.add_model(topics.head("v0"), {})
    return topics


def test_the_parent_is_the_one_that_is_given_else_the_layers(
    topics: Collection, engine: SearchEngine
) -> None:
    layer = open_layer(engine, "topics", model="v1")
    assert [save_model(topics, layer, parent=parent).parent for parent in (None, "v0")] == ["v1", "v0"]


def test_a_layer_is_found_inside_of_all_that_wraps_it(topics: Collection, engine: SearchEngine) -> None:
    """`torch.compile` keeps it under another name than parallel data and averages do."""
    layer = open_layer(engine, "topics")
    assert unwrapped(SimpleNamespace(_orig_mod=SimpleNamespace(module=layer))) is layer


def test_a_kept_version_is_compared_with_the_live_one(topics: Collection) -> None:
    kept = save_model(topics, topics.head("v0"))
    topics.promote("v1")
    judge_version(topics, kept.version, SavingJob(before=SCORES, after=BETTER))
    assert topics.store.model(kept.version).record["compared_with"] == "v1"


def test_scores_are_of_the_version_that_they_name(topics: Collection) -> None:
    evidence = ExampleScores(SCORES, BETTER, live="v0")
    topics.promote("v1")
    saved = save_model(topics, topics.head("v0"), evidence=evidence)
    assert topics.store.model(saved.version).record["compared_with"] == "v0"
    assert (saved.live, saved.outdated_by) == (None, "v1")


def test_judgements_that_cannot_be_used_are_told(topics: Collection) -> None:
    some = list(TEXTS)[:12]
    judged = {id: {**JUDGED[id], "nobody": 1.0} for id in some}
    evidence = JudgedQueries({id: TEXTS[id] for id in some}, judged)
    saved = save_model(topics, topics.head("v0"), evidence=evidence)
    assert list(topics.store.model(saved.version).record["left_out"].values()) == [12]


@pytest.mark.parametrize("promote", [True, False])
@pytest.mark.parametrize("part", ["outcomes", "second_stage"])
def test_what_stands_beside_a_result_goes_live_if_anything_may(
    monkeypatch: pytest.MonkeyPatch, part: str, promote: bool
) -> None:
    live_by_now: Any = SimpleNamespace(live_model="v1", store=None)
    called: list[str] = []
    first = Registration("v2", None, "v0", "kept")

    def registered(name: str) -> Any:
        def call(*_: Any, **options: Any) -> Registration:
            called.append(name)
            assert options.get("parent", "v0") == "v0"  # where the run began
            return first

        return call

    for name in ("register", "register_outcomes", "register_second_stage"):
        monkeypatch.setattr(sys.modules[JobResult.__module__], name, registered(name))
    for passed in (True, False):
        called.clear()
        beside: Any = SimpleNamespace(
            gate=SimpleNamespace(passed=passed), passed=passed, rows=[], record={}, stage=SecondStage()
        )
        result: Any = SimpleNamespace(head=Head(4), record={})
        learned = JobResult(result, "v0", 12, {}, **{part: beside})
        learned.register(live_by_now, TrainingJob(self_supervised=True, promote=promote))
        assert called == ["register", *([f"register_{part}"] if promote and passed else [])]


def test_a_result_of_the_query_memory_shows_its_settings() -> None:
    record = {"scope": "memory", "keyword_weight": 0.5, "epochs": 3}
    told = summary(Registration("v1", None, "v0", "kept"), record, {})
    assert told["keyword_weight"] == 0.5
    assert "epochs" not in told


@pytest.mark.parametrize("scored", ["what is saved", "what is live"])
def test_judgements_say_nothing_of_a_learned_score(topics: Collection, scored: str) -> None:
    plain = topics.head("v0")
    learned = plain.scoring_by(new_score("gaussian", topics.store.dimension))
    topics.promote(topics.add_model(plain if scored == "what is saved" else learned, {}))
    head = learned if scored == "what is saved" else plain
    with pytest.raises(InvalidRequest, match="a learned score, which they would rank by the inner product"):
        save_model(topics, head, evidence=JudgedQueries(TEXTS, JUDGED))


def test_documents_that_are_encoded_again_are_judged_with_the_hops_of_the_head(topics: Collection) -> None:
    """Of the same embeddings the judgement is the same, a hop and all."""
    snapshot = topics.snapshot
    documents = EncodedDocuments(snapshot, snapshot.embeddings(np.arange(snapshot.positions)))
    head = Head(topics.store.dimension).eval()
    with torch.no_grad():
        head.hop_strength.fill_(3.0)
        head.keyword_weight.fill_(0.0)
    queries = {f"q{n}": f"alpha{n} gamma0" for n in range(12)}
    job = SavingJob(queries=queries, judgements={f"q{n}": {f"d{n}-2": 1.0} for n in range(12)})
    own, again, plain = (
        judge_layer(topics, of, job, parent="v0", documents=given).gate.slice("all").after
        for of, given in ((head, None), (head, documents), (Head(topics.store.dimension).eval(), None))
    )
    assert again == own != plain


def test_what_nobody_judged_was_compared_with_nothing(topics: Collection) -> None:
    kept = save_model(topics, topics.head("v0"))
    assert topics.store.model(kept.version).record["compared_with"] is None


def test_a_parent_with_a_memory_is_not_lost(topics: Collection) -> None:
    topics.store.add_model("v2", "v0", {"format": 2, "files": {}, "head": {}, "memory": {}})
    with pytest.raises(Conflict, match="v2 has a memory of judged queries"):
        save_model(topics, topics.head("v0"), parent="v2")

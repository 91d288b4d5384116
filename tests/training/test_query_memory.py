"""A query memory is chosen without its own rows, with hidden documents, and goes live by the gate."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.training.topics import DOCUMENTS, TOPICS, queries_of, topics_in

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine, SearchLayer
from dsearch.jobs import TrainingJob
from dsearch.training import Examples, TrainingOptions, examples_from_judgements, run_training
from dsearch.training.gate.selection import on_device_of, with_memory
from dsearch.training.memory import ChosenMemory, MemorySetting, MemoryTrials, memory_of
from dsearch.training.memory_values import values_of_memories
from dsearch.training.ranking import Ranking
from dsearch.training.relevant import Relevant
from dsearch.training.tune import DEFAULT, Trials

SETTING = MemorySetting(0.8, 0.05, 0.5)
HEAD = importlib.import_module("dsearch.training.finetune.head")


@pytest.fixture
def topics(engine: SearchEngine) -> Collection:
    return topics_in(engine)


@pytest.fixture
def examples(topics: Collection) -> Examples:
    return examples_from_judgements(topics, *queries_of()).remembering()


@pytest.mark.parametrize("setting", [MemorySetting(0.8, 0.05, 0.3), MemorySetting(0.4, 0.07, 0.7, 0.5)])
def test_the_grid_is_scored_as_its_memories_rank(examples: Examples, setting: MemorySetting) -> None:
    drawn = np.arange(len(examples))
    values = values_of_memories(examples, drawn, [DEFAULT])[DEFAULT, setting].all
    head = Head(examples.states.shape[1])
    for number in (0, len(examples) // 2):
        others = examples.subset([at for at in range(len(examples)) if at != number])
        head.memory = memory_of(others, setting)
        one = examples.subset([number])
        ndcg = Relevant(one.relevant).ndcg_at_10(Ranking(one).top(head.eval()))
        assert values[number] == pytest.approx(ndcg[0], abs=1e-6)


def test_a_ranking_of_training_queries_leaves_their_own_rows_out(examples: Examples) -> None:
    """Else a memory would be judged by what it knows by heart."""
    head = Head(examples.states.shape[1])
    head.memory = memory_of(examples.subset([0]), SETTING._replace(strength=50.0))
    plain = Ranking(examples.subset([0])).top(Head(examples.states.shape[1]).eval())
    assert np.array_equal(Ranking(examples.subset([0])).top(head.eval()), plain)


def test_one_ranking_ranks_by_one_memory_after_another(examples: Examples) -> None:
    """Heads of a fold have memories of different rows, or that lend otherwise."""
    head, held_out = Head(examples.states.shape[1]).eval(), examples.subset(range(0, len(examples), 2))
    ranking, tops = Ranking(held_out), list[np.ndarray]()
    for start, lending in ((1, 1.0), (3, 1.0), (3, 0.0)):
        known = examples.subset(range(start, len(examples), 4))
        memory = memory_of(known, SETTING._replace(lending=lending))
        alone = Ranking(held_out).top(with_memory(head, memory, 1.0))
        np.testing.assert_array_equal(ranking.top(with_memory(head, memory, 1.0)), alone)
        assert not any(np.array_equal(alone, other) for other in tops)
        tops.append(alone)


@pytest.mark.parametrize("source", ["judgements", "clicks", "documents"])
def test_past_queries_are_those_that_people_judged(
    examples: Examples, monkeypatch: pytest.MonkeyPatch, source: Any
) -> None:
    tried: list[str] = []

    def choose() -> None:
        raise InterruptedError

    monkeypatch.setattr(HEAD, "_trials", lambda *_: SimpleNamespace(choose=choose))
    monkeypatch.setattr(HEAD.MemoryTrials, "of", lambda _: tried.append(source))
    with pytest.raises(InterruptedError):
        HEAD.finetune(replace(examples, source=source), TrainingOptions(epochs=1))
    assert tried == (["judgements"] if source == "judgements" else [])


def test_what_a_ranking_orders_by_is_what_a_search_serves(topics: Collection, examples: Examples) -> None:
    head = Head(examples.states.shape[1])
    head.memory = memory_of(examples.subset(range(0, len(examples), 2)), SETTING)
    with torch.no_grad():
        head.hop_strength.fill_(0.5)
    held_out = examples.subset(range(1, len(examples), 2))
    top = Ranking(held_out).top(head.eval(), 5, hop_strength=0.5)
    version = topics.add_model(head, {})
    served = [topics.search(text, model=version, limit=5) for text in held_out.texts]
    assert [[hit.id for hit in result.hits] for result in served] == topics.ids_at(examples.snapshot, top)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_memory_ranks_and_is_trained_beside_on_a_gpu(topics: Collection, examples: Examples) -> None:
    head = Head(examples.states.shape[1]).eval()
    memory = memory_of(examples.subset(range(0, len(examples), 2)), SETTING)
    assert memory is not None
    held_out = examples.subset(range(1, len(examples), 2))
    here = Ranking(held_out).top(with_memory(head, memory, 1.0), 5)
    head.cuda()
    there = Ranking(held_out).top(with_memory(head, on_device_of(head, memory), 1.0), 5)
    assert (here == there).mean() > 0.99
    assert memory.keys.device.type == "cpu"
    layer = SearchLayer(topics.snapshot, with_memory(head, on_device_of(head, memory), 1.0), mode="dense")
    assert layer(torch.as_tensor(held_out.states).cuda()).positions[0, 0] == here[0, 0]
    texts, judged = queries_of()
    job = TrainingJob(queries=texts, judgements=judged)
    live = run_training(topics, job, device="cuda").register(topics, job).live
    assert live is not None
    assert "memory" in topics.store.model(live).record


def test_no_query_is_answered_by_its_episode(topics: Collection) -> None:
    """Two wordings with the same three answers: one of them must not tell the other's."""
    texts, _ = queries_of()
    grades = {
        query: {f"d{int(query[1:3])}-{number}": 1.0 for number in range(DOCUMENTS)}
        for query in texts
        if query.endswith(("-0", "-1"))
    }
    examples = examples_from_judgements(topics, texts, grades).remembering()
    strong = MemorySetting(1.5, 0.05, 0.3)
    values = values_of_memories(examples, np.arange(len(examples)), [DEFAULT])
    assert values[DEFAULT, strong].all.mean() < values[DEFAULT, None].all.mean() + 0.1
    pairs = {query: dict(list(of.items())[:2]) for query, of in grades.items()}  # too few to be an episode
    examples = examples_from_judgements(topics, texts, pairs).remembering()
    values = values_of_memories(examples, np.arange(len(examples)), [DEFAULT])
    assert values[DEFAULT, strong].all.mean() > values[DEFAULT, None].all.mean() + 0.3


def test_queries_of_one_episode_are_answered_by_the_memory_that_there_is(topics: Collection) -> None:
    """Without their episode none would be left."""
    texts, _ = queries_of()
    grades = {query: {f"d0-{number}": 1.0 for number in range(DOCUMENTS)} for query in [*texts][:4]}
    examples = examples_from_judgements(topics, texts, grades).remembering()
    values = values_of_memories(examples, np.arange(4), [DEFAULT])
    assert all(np.isfinite(of.all).all() for of in values.values())


def test_memory_is_chosen_where_past_queries_tell(examples: Examples) -> None:
    memories = MemoryTrials.of(Trials.of(examples))
    chosen, report = memories.judged()
    assert chosen.memory is not None
    whole = report.slice("all")
    assert whole.before is not None
    assert whole.after is not None
    assert whole.after > whole.before + 0.3
    assert report.passed


def test_a_query_is_seen_where_another_one_judged_a_document_of_its(topics: Collection) -> None:
    texts, _ = queries_of()
    judged = {query: {f"d{number}-0": 1.0} for number, query in enumerate([*texts][:12])}
    first, second = [*judged][3], [*judged][7]
    judged[first] |= judged[second]
    examples = examples_from_judgements(topics, texts, judged).remembering()
    memories = MemoryTrials.of(Trials.of(examples))
    seen = {text for text, is_seen in zip(examples.texts, memories.seen, strict=True) if is_seen}
    assert seen == {texts[first], texts[second]}


def test_random_judgements_give_no_memory_that_goes_live(topics: Collection) -> None:
    texts, _ = queries_of()
    passed = 0
    for seed in range(8):
        drawn = np.random.default_rng(seed).integers(0, (TOPICS, DOCUMENTS), (len(texts), 2))
        grades = {query: {f"d{topic}-{n}": 1.0} for query, (topic, n) in zip(texts, drawn, strict=True)}
        examples = examples_from_judgements(topics, texts, grades).remembering()
        chosen, report = MemoryTrials.of(Trials.of(examples)).judged()
        passed += chosen.memory is not None and report.passed
    assert passed <= 1  # each passes in one of twenty


def test_clicks_keep_no_texts(examples: Examples) -> None:
    memory = memory_of(replace(examples, source="clicks"), SETTING)
    assert memory is not None
    assert memory.texts is None


def test_training_lets_a_memory_go_live_and_queries_find_by_it(topics: Collection) -> None:
    texts, grades = queries_of()
    job = TrainingJob(queries=texts, judgements=grades, epochs=2)
    done = run_training(topics, job)
    registered = done.register(topics, job)
    assert registered.live is not None
    assert "memory" in topics.store.model(registered.live).record
    first = topics.search("question3 about3 other wording", explain=True).hits[0]
    assert first.id in ("d3-0", "d3-1")
    assert first.explain is not None
    assert first.explain.past_queries
    before = topics.search("question3 about3 other wording", model="v0").hits[0]
    assert before.id not in ("d3-0", "d3-1")
    topics.promote("v0")
    assert topics.search("question3 about3 other wording").hits[0].id == before.id


def test_without_memory_none_is_fitted(topics: Collection) -> None:
    texts, grades = queries_of()
    job = TrainingJob(queries=texts, judgements=grades, epochs=2, memory=False)
    version = run_training(topics, job).register(topics, job).version
    assert topics.head(version).memory is None


def test_past_queries_are_as_an_encoder_that_learned_sees_them(
    topics: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each fold the memory beside the trained head has the states of its own encoder."""
    seen: list[Any] = []

    def noted(examples: Examples, setting: MemorySetting, states: Any = None) -> Any:
        seen.append((examples.states, states))
        return memory_of(examples, setting, states=states)

    calibrated: list[bool] = []
    ranked = HEAD.ranked_examples

    def as_stored(examples: Examples, head: Head) -> Any:
        calibrated.append(np.allclose(examples.states, topics.encoder.encode_queries(examples.texts)))
        return ranked(examples, head)

    monkeypatch.setattr(HEAD, "ranked_examples", as_stored)
    monkeypatch.setattr(HEAD, "memory_of", noted)
    unasked: list[int] = []

    def choose(_: MemoryTrials, *given: Any, without: Sequence[int] = ()) -> ChosenMemory:
        unasked.extend(without)
        return ChosenMemory(DEFAULT, SETTING)

    monkeypatch.setattr(MemoryTrials, "choose", choose)
    queries, judgements = queries_of()
    chosen: dict[str, Any] = {"encoder_training": "all", "encoder_learning_rate": 0.05, "epochs": 1}
    run_training(topics, TrainingJob(queries=queries, judgements=judgements, scope="query", **chosen))
    of_folds = [pair for pair in seen if len(pair[0]) < len(queries)]  # a fold knows nothing of its own
    trained = [(stored, own) for stored, own in of_folds if own is not None]
    # By fold: beside the tuned search; beside the head when it is ranked, and when it is calibrated.
    assert 2 * len(of_folds) == 3 * len(trained) > 0
    assert len(seen) - len(of_folds) <= 1  # beside the head that learned from all
    assert not any(np.allclose(stored, own) for stored, own in trained)
    assert sorted(unasked) == [*range(len(queries))]  # each fold chooses none of its own
    assert len(calibrated) == 3
    assert not any(calibrated)

"""Fine-tuning learns what can be learned, holds out honestly, repeats itself, and refuses nonsense."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from support.training.observers import Recorder

from dsearch.engine import Collection, SearchEngine, make_run
from dsearch.errors import InvalidRequest
from dsearch.evaluation import evaluate
from dsearch.training import (
    Examples,
    TrainingOptions,
    TrainingResult,
    examples_from_corpus,
    examples_from_judgements,
    finetune,
    headroom,
    self_supervised_options,
    sentences_of_corpus,
    train_head,
)
from dsearch.training.gate.held_out import Answers, HeldOut, split_folds
from dsearch.training.gate.selection import FoldAnswers, kept_checkpoint
from dsearch.training.head_task import TrainingDiverged
from dsearch.training.losses.objectives import OBJECTIVES, retention
from dsearch.types import Document, Query, SearchResult

PAIRS = 60
module = import_module("dsearch.training.finetune.head")  # the package has a function of this name


@pytest.fixture
def synonyms(engine: SearchEngine) -> tuple[Collection, dict[str, str], dict[str, dict[str, float]]]:
    """Queries and documents that share no word: only training can bring them together."""
    collection = engine.create("synonyms")
    collection.ingest(
        [Document(id=f"d{i}", text=f"answer{i % 20} colour{i % 3} filler{i}") for i in range(PAIRS)]
    )
    queries = {f"q{i}": f"question{i % 20} colour{i % 3} asked{i}" for i in range(PAIRS)}
    return collection, queries, {f"q{i}": {f"d{i}": 1.0} for i in range(PAIRS)}


def examples(synonyms: tuple[Collection, dict[str, str], dict[str, dict[str, float]]]) -> Examples:
    return examples_from_judgements(*synonyms)


def test_training_learns_and_the_served_search_shows_it(
    synonyms: tuple[Collection, dict[str, str], dict[str, dict[str, float]]],
) -> None:
    collection, queries, _ = synonyms

    def answered() -> int:
        results = collection.search_batch(list(queries.values()), limit=1)
        return sum(result.hits[0].id == f"d{i}" for i, result in enumerate(results))

    before = answered()
    options = TrainingOptions(epochs=40, learning_rate=1e-2, retention=0.1, decay=0.0, folds=0)
    trained = finetune(examples(synonyms), options)
    version = collection.add_model(trained.head, trained.record)
    collection.promote(version)
    assert answered() > before + 20
    collection.promote("v0")
    assert answered() == before


@pytest.mark.parametrize("query_side", ["low-rank", "mlp"])
def test_queries_learn_to_be_moved_in_every_way(
    synonyms: tuple[Collection, dict[str, str], dict[str, dict[str, float]]], query_side: str
) -> None:
    collection, queries, _ = synonyms
    options = TrainingOptions(
        epochs=40,
        learning_rate=1e-2,
        retention=0.1,
        decay=0.0,
        folds=0,
        query_side=query_side,
        train_keys=False,
    )
    trained = finetune(examples(synonyms), options)
    assert trained.record["options"]["query_side"] == query_side
    version = collection.add_model(trained.head, trained.record)
    found = collection.search_batch(list(queries.values()), limit=1, model=version)
    before = collection.search_batch(list(queries.values()), limit=1)

    def right(results: list[SearchResult]) -> int:
        return sum(result.hits[0].id == f"d{i}" for i, result in enumerate(results))

    assert right(found) > right(before) + 10


def test_shares_of_heads_learn_to_follow_the_query_and_are_judged_as_served(
    synonyms: tuple[Collection, dict[str, str], dict[str, dict[str, float]]],
) -> None:
    collection, queries, judged = synonyms
    options = TrainingOptions(epochs=8, learning_rate=1e-2, retention=0.0, heads=3, excitation=True, folds=0)
    head = train_head(examples(synonyms), options)
    assert head.excitation is not None
    assert head.excitation.excite.abs().max() > 0.01
    version = collection.add_model(head, {})
    saved = collection.head(version)
    run = make_run(collection, [Query(id, text) for id, text in queries.items()], head=saved)
    served = evaluate(run, judged, ["nDCG@10"])["nDCG@10"]
    data = examples(synonyms)
    ids = {text: id for id, text in queries.items()}
    expected = [served[ids[text]] for text in data.texts]
    assert HeldOut(data, data.subset([0])).answers(saved).all.tolist() == pytest.approx(expected)
    with pytest.raises(InvalidRequest, match="shares of several heads; use heads=2 or more"):
        TrainingOptions(excitation=True)


def test_equal_seeds_give_equal_heads(
    synonyms: tuple[Collection, dict[str, str], dict[str, dict[str, float]]],
) -> None:
    data, options = examples(synonyms), TrainingOptions(epochs=2, heads=2)
    one, same = train_head(data, options), train_head(data, options)
    other = train_head(data, TrainingOptions(epochs=2, heads=2, seed=1))
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, same.state_dict()[name])
    assert not torch.equal(one.key_delta, other.key_delta)
    assert not torch.equal(one.query_out[0], one.query_out[1])


def test_keywords_are_held_without_them(
    synonyms: tuple[Collection, dict[str, str], dict[str, dict[str, float]]],
) -> None:
    held = train_head(examples(synonyms), TrainingOptions(epochs=2, keywords=False))
    moved = train_head(examples(synonyms), TrainingOptions(epochs=2))
    assert held.keyword_weight.tolist() == [1.0]
    assert moved.keyword_weight.tolist() != [1.0]
    assert not torch.equal(held.key_delta, torch.zeros_like(held.key_delta))
    query_side = train_head(examples(synonyms), TrainingOptions(epochs=2, train_keys=False))
    assert torch.equal(query_side.key_delta, torch.zeros_like(query_side.key_delta))


def test_retention_keeps_documents_in_place(
    synonyms: tuple[Collection, dict[str, str], dict[str, dict[str, float]]],
) -> None:
    def moved(weight: float) -> float:
        options = TrainingOptions(epochs=20, learning_rate=1e-2, retention=weight, decay=0.0)
        head = train_head(examples(synonyms), options)
        corpus = torch.as_tensor(np.array(synonyms[0].snapshot.generation.embeddings))
        return retention(head, corpus, corpus).item()

    assert moved(30.0) < 0.3 * moved(0.0)


def test_nan_stops_and_nothing_is_kept(
    synonyms: tuple[Collection, dict[str, str], dict[str, dict[str, float]]],
) -> None:
    data = examples(synonyms)
    data.states[7, 3] = np.nan
    with pytest.raises(TrainingDiverged, match="nothing was kept"):
        finetune(data, TrainingOptions(epochs=1))


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_every_objective_brings_answers_up(
    synonyms: tuple[Collection, dict[str, str], dict[str, dict[str, float]]], objective: str
) -> None:
    collection, queries, qrels = synonyms
    # A teacher who prefers the answer to a document of the same colour.
    taught = {query: {f"d{i}": 8.0, f"d{(i + 3) % PAIRS}": 0.0} for i, query in enumerate(queries)}
    data = examples_from_judgements(collection, queries, qrels, teacher=taught)
    options = TrainingOptions(
        objective=objective, epochs=15, learning_rate=1e-2, retention=0.1, decay=0.0, heads=2
    )
    before, after = (headroom(data, head) for head in (None, train_head(data, options)))
    assert after.recall_at_10 > before.recall_at_10 + 0.1


def test_a_teacher_is_asked_for(
    synonyms: tuple[Collection, dict[str, str], dict[str, dict[str, float]]],
) -> None:
    with pytest.raises(InvalidRequest, match="objective='teacher' learns from a teacher's scores"):
        train_head(examples(synonyms), TrainingOptions(objective="teacher"))


def test_unusable_judgements_are_counted(collection: Collection) -> None:
    queries = {"a": "apple", "b": "bread", "c": "  ", "d": "dough"}
    qrels = {
        "a": {"d0": 2.0, "d1": 1.0, "gone": 1.0, "d2": 0.0},
        "b": {"gone": 1.0},
        "c": {"d1": 1.0},
        "d": {"d3": 0.0},
        "e": {"d3": 1.0},
    }
    found = examples_from_judgements(collection, queries, qrels, {"a": {"d1"}})
    assert found.texts == ["apple"]
    positions, grades = found.relevant[0]
    assert collection.ids_at(found.snapshot, positions[None])[0] == ["d0"]
    assert grades.tolist() == [2.0]
    assert found.left_out == {
        "queries without text": 2,
        "queries without a known positive": 2,
        "unknown documents": 2,
    }
    with pytest.raises(InvalidRequest, match="no usable training query: queries without a known positive: 1"):
        examples_from_judgements(collection, {"b": "bread"}, {"b": {"gone": 1.0}})


def test_self_supervision_draws_sentences_of_documents(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = engine.create("prose")
    collection.upsert([Document("word", "one"), Document("other", "two")])
    with pytest.raises(InvalidRequest, match="no document of collection 'prose' has a title, or a sentence"):
        examples_from_corpus(collection)
    collection.delete(["word", "other"])
    text = (
        "The first sentence says a thing about {}. The second sentence of {} says another thing. Short one."
    )
    collection.ingest([Document(id=str(i), text=text.format(f"item{i}", f"item{i}")) for i in range(30)])
    found = examples_from_corpus(collection)
    assert len(found) == 60
    for query, (positions, _) in zip(found.texts, found.relevant, strict=True):
        row = found.snapshot.rows(positions)
        assert query in collection.store.documents(row)[0].text
    assert examples_from_corpus(collection).digest == sentences_of_corpus(collection).digest == found.digest
    assert examples_from_corpus(collection, seed=1).digest != found.digest
    drawn = [examples_from_corpus(collection, limit=10, seed=seed) for seed in (0, 1)]
    assert [len(of) for of in drawn] == [20, 20]
    of_documents = [{*np.concatenate([at for at, _ in of.relevant]).tolist()} for of in drawn]
    assert of_documents[0] != of_documents[1]  # of all of them, by chance
    monkeypatch.setattr("dsearch.training.data.examples._READ_AT_A_TIME", 7)
    assert sentences_of_corpus(collection).digest == found.digest
    titled = Document("titled", "The only sentence of this body.", "A title of four words")
    collection.upsert([titled, Document("bare", "", "Another title of five words")])
    more = examples_from_corpus(collection)
    assert more.texts == [*found.texts, titled.title]
    assert more.snapshot.rows(more.relevant[-1][0]).tolist() == [
        collection.store.rows_of(["titled"])["titled"]
    ]
    chosen = self_supervised_options(seed=4, epochs=1)
    assert (chosen.seed, chosen.epochs, chosen.keywords) == (4, 1, False)


def test_validation_ranks_like_the_served_search(collection: Collection) -> None:
    queries = {f"q{i}": text for i, text in enumerate(["apple bread", "honey ice", "kale lemon", "oat pear"])}
    qrels = {f"q{i}": {f"d{(3 * i) % 16}": 1.0, f"d{i}": 2.0} for i in range(4)}
    data = examples_from_judgements(collection, queries, qrels)
    held_out = HeldOut(data.subset([0, 1]), data.subset([2, 3]))
    run = make_run(collection, [Query(id, text) for id, text in queries.items()])
    expected = evaluate(run, qrels, ["nDCG@10"])["nDCG@10"]
    answers = held_out.answers(collection.head("v0"))
    assert answers.all.tolist() == pytest.approx([expected["q0"], expected["q1"]])
    # q0's d0 is seen by no other query, q1's d1 and d3: d1 by none, d3 by q3 (grade 2)
    assert answers.seen.tolist() == [False, True]
    residual = {"q0": qrels["q0"], "q1": {"d1": 2.0}}
    without_seen = evaluate(run, residual, ["nDCG@10"], {"q1": {"d3"}})["nDCG@10"]
    assert answers.unseen.tolist() == pytest.approx([without_seen["q0"], without_seen["q1"]])


def test_held_out_queries_are_partly_document_disjoint(collection: Collection) -> None:
    queries = {f"q{i}": f"word{i}" for i in range(64)}
    data = examples_from_judgements(collection, queries, {f"q{i}": {f"d{i % 16}": 1.0} for i in range(64)})
    parts = split_folds(data, 4, seed=0)
    assert sorted(query for part in parts for query in part) == list(range(64))
    assert all(len(part) == 16 for part in parts)
    seen = [
        HeldOut(data.subset(part), data.subset(sorted(set(range(64)) - set(part)))).seen.sum()
        for part in parts
    ]
    assert 24 <= sum(seen) <= 40
    assert split_folds(data, 4, seed=0) == parts
    assert split_folds(data, 4, seed=1) != parts


def test_epochs_are_cut_only_on_clear_evidence() -> None:
    generator = np.random.default_rng(0)
    seen = np.arange(200) % 2 == 0
    noise = 0.3 * generator.standard_normal((10, 200))
    rising = np.linspace(0, 0.2, 10)[:, None] + noise
    assert kept_checkpoint(rising, seen) == 9
    level = 0.5 + noise
    assert kept_checkpoint(level, seen) == 9
    falling = np.concatenate([np.full((1, 200), 0.9), np.full((9, 200), 0.3)]) + 0.1 * noise
    assert kept_checkpoint(falling, seen) == 0


def test_a_head_that_does_not_help_is_not_recommended(
    synonyms: tuple[Collection, dict[str, str], dict[str, dict[str, float]]],
) -> None:
    collection, queries, qrels = synonyms
    shuffled = {query: {f"d{(int(query[1:]) * 7 + 13) % PAIRS}": 1.0} for query in qrels}
    trained = finetune(
        examples_from_judgements(collection, queries, shuffled), TrainingOptions(epochs=3, learning_rate=1e-4)
    )
    assert trained.gate.verdict in ("refused", "cannot tell")
    assert not trained.passed
    assert trained.record["gate"]["reason"] == trained.reason
    few = finetune(examples(synonyms).subset(range(9)), TrainingOptions(epochs=1))
    assert few.gate.verdict == "cannot tell"
    assert "no query was held out" in few.reason
    enough = finetune(examples(synonyms).subset(range(10)), TrainingOptions(epochs=1, tune=False))
    assert enough.gate.slice("all").queries == 10


def test_folds_are_held_out_until_it_is_enough(
    synonyms: tuple[Collection, dict[str, str], dict[str, dict[str, float]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    observer = Recorder()

    def trained(folds: int) -> TrainingResult:
        observer.epochs.clear()
        return finetune(examples(synonyms), TrainingOptions(epochs=1, folds=folds), observer=observer)

    everything = trained(3)
    assert observer.stages == ["validate"] * 3 + ["train"]
    assert everything.gate.slice("all").queries == PAIRS
    assert everything.gate.slice("seen").queries == 0  # no two queries share a document
    assert everything.record["gate"]["canary_overlap"] == everything.gate.canary_overlap
    monkeypatch.setattr(import_module("dsearch.training.finetune.head"), "ENOUGH", 20)
    one = trained(3)
    assert observer.stages == ["validate", "train"]
    assert one.gate.slice("all").queries == 20
    assert trained(0).gate.verdict == "cannot tell"
    assert observer.stages == ["train"]


def test_a_fold_has_no_part_in_the_choice_of_its_setting_and_memory(
    synonyms: tuple[Collection, dict[str, str], dict[str, dict[str, float]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Choosing:
        """Trials that note which queries have no part in a choice."""

        def __init__(self, trials: Any):
            self.trials, self.without = trials, list[list[int]]()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.trials, name)

        def choose(self, without: Sequence[int] = ()) -> Any:
            self.without.append(list(without))
            return self.trials.choose(without)

    chosen: list[tuple[list[int], list[list[int]], list[list[int]]]] = []
    whole = module._FoldTraining  # pyright: ignore[reportPrivateUsage]

    def fold(run: Any, name: str, part: list[int], checkpoints: list[int], *trials: Any) -> Any:
        settings, memories = map(Choosing, trials)
        chosen.append((part, settings.without, memories.without))
        return whole(run, name, part, checkpoints, settings, memories)

    monkeypatch.setattr(module, "_FoldTraining", fold)
    finetune(examples(synonyms).subset(range(40)), TrainingOptions(epochs=1, folds=2))
    assert len(chosen) == 2
    for part, settings, memories in chosen:
        assert settings == memories == [part]


def test_held_out_queries_are_ranked_after_checkpoints_and_no_other_epoch(
    synonyms: tuple[Collection, dict[str, str], dict[str, dict[str, float]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    observer = Recorder()
    ranked: list[int] = []
    answers = HeldOut.answers
    monkeypatch.setattr(HeldOut, "answers", lambda *given: ranked.append(1) or answers(*given))
    finetune(examples(synonyms), TrainingOptions(epochs=30, folds=2, tune=False), observer=observer)
    told = [(epoch.number, epoch.before is not None, epoch.after is not None) for _, epoch in observer.epochs]
    assert told[:30] == told[30:60] == [(n, n % 3 == 0, n % 3 == 0) for n in range(1, 31)]
    assert told[60:] == [(n, False, False) for n in range(1, 31)]
    # What answers now, and nine checkpoints; those of the last one come with the ways that it may be served.
    assert len(ranked) == 2 * (1 + 9)


def test_the_gate_scores_a_fold_at_what_other_queries_choose(
    monkeypatch: pytest.MonkeyPatch,
    synonyms: tuple[Collection, dict[str, str], dict[str, dict[str, float]]],
) -> None:
    """Were it scored at its own choice, noise would look like a gain: here each fold likes another epoch."""

    def fold(better: int) -> object:
        def answered(value: float) -> Answers:
            return Answers(np.full(40, value), np.zeros(40, bool), np.full(40, value))

        after = [answered(0.9 if epoch == better else 0.3) for epoch in (1, 2)] + [answered(0.4)]
        return FoldAnswers(answered(0.5), answered(0.5), after, {})

    monkeypatch.setattr(module.Trainings, "held_out_folds", lambda *_: [fold(1), fold(2)])
    trained = finetune(examples(synonyms), TrainingOptions(epochs=3))
    whole = trained.gate.slice("all")
    assert whole.before == pytest.approx(0.5)
    assert whole.after == pytest.approx(0.3)
    assert trained.gate.verdict == "refused"

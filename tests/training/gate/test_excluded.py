"""Pairs that are excluded have no part in any ranking: of headroom, tuning, gate."""

from __future__ import annotations

import numpy as np

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, make_run
from dsearch.evaluation import evaluate
from dsearch.training import examples_from_judgements, headroom, tune
from dsearch.training.gate.held_out import HeldOut
from dsearch.training.ranking import Ranking, corpus_embeddings
from dsearch.types import Query

QUERIES = {f"q{i}": f"number{i}" for i in range(12)}
QRELS = {f"q{i}": {f"d{(i + 1) % 16}": 1.0} for i in range(12)}
SOURCES = {f"q{i}": {f"d{i}"} for i in range(0, 12, 2)}  # what the query was written from


def test_an_excluded_document_stands_in_nobodys_way(collection: Collection) -> None:
    with_sources = examples_from_judgements(collection, QUERIES, QRELS)
    without = examples_from_judgements(collection, QUERIES, QRELS, SOURCES)
    head = Head(32)
    top = Ranking(without).top(head, 16)
    for i, name in enumerate(sorted(QUERIES)):
        ids = collection.ids_at(without.snapshot, top[i : i + 1])[0]
        excluded = next(iter(SOURCES.get(name, {""})))
        assert excluded not in ids[:15], name
        if name in SOURCES:
            assert ids[15] == excluded  # last, as good as gone
    first = collection.ids_at(with_sources.snapshot, Ranking(with_sources).top(head, 1))
    assert first[0] == ["d0"]
    assert headroom(without).answered_first >= headroom(with_sources).answered_first


def test_gate_and_tuning_rank_as_the_evaluation_does(collection: Collection) -> None:
    examples = examples_from_judgements(collection, QUERIES, QRELS, SOURCES)
    run = make_run(collection, [Query(id, text) for id, text in QUERIES.items()], exclude=SOURCES)
    expected = evaluate(run, QRELS, ["nDCG@10"], exclude=SOURCES)["nDCG@10"]
    names = sorted(QUERIES)
    answers = HeldOut(examples, examples.subset([])).answers(Head(32))
    assert answers.all.tolist() == [expected[name] for name in names]
    tuned = tune(examples, seed=0)
    assert abs(tuned.scores["untuned"] - sum(expected.values()) / len(expected)) < 1e-9


def test_subsets_keep_what_is_hidden(collection: Collection) -> None:
    examples = examples_from_judgements(collection, QUERIES, QRELS, SOURCES)
    assert examples.hidden is not None
    part = examples.subset([0, 3])
    assert part.hidden is not None
    assert [of.tolist() for of in part.hidden] == [examples.hidden[0].tolist(), examples.hidden[3].tolist()]
    assert examples_from_judgements(collection, QUERIES, QRELS).hidden is None
    nobody = examples_from_judgements(collection, QUERIES, QRELS, {"q1": {"gone"}})
    assert nobody.hidden is None


def test_a_deleted_document_is_in_no_ranking_and_in_no_softmax(collection: Collection) -> None:
    stored = collection.snapshot.embeddings(np.arange(16)).copy()
    collection.delete(["d5"])
    snapshot = collection.snapshot
    examples = examples_from_judgements(collection, {"q": "number5"}, {"q": {"d4": 1.0}})
    top = Ranking(examples).top(Head(32), 16)[0]
    assert top[-1] == 5  # as good as gone, though it has the word
    corpus = corpus_embeddings(snapshot).numpy()
    assert not corpus[5].any()
    np.testing.assert_array_equal(np.delete(corpus, 5, 0), np.delete(stored, 5, 0))

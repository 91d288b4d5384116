"""The figures that README states, on the collections they are stated for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.real_data import DATA, collection_of
from support.sizes import by_size

from dsearch.cli.commands.evaluate import Judgements, compare_systems, read_judgements
from dsearch.corpus import BeirFolder, Problems
from dsearch.engine import Collection, SearchEngine, System, make_run
from dsearch.evaluation import EvaluationReport, read_trec, write_trec
from dsearch.training import examples_from_judgements, finetune


def ndcg(report: EvaluationReport, system: str, group: str = "all") -> float:
    return report.cell(system, "nDCG@10", group).mean


@pytest.mark.nightly
@pytest.mark.timeout(3600)  # three folds of a real training: a quarter of an hour on a busy machine
def test_scifact_untrained_and_trained(real_engine: SearchEngine) -> None:
    collection = collection_of(real_engine, "scifact")
    judged = read_judgements(DATA / "scifact", "test")
    assert judged.training is not None
    texts = {query.id: query.text for query in BeirFolder(DATA / "scifact").queries(Problems())}
    trained = finetune(examples_from_judgements(collection, texts, judged.training))
    assert trained.verdict[0], trained.verdict[1]
    collection.promote(collection.add_model(trained.head, trained.record))
    report = compare_systems(collection, judged)
    assert ndcg(report, "dense") == pytest.approx(0.645, abs=0.002)
    assert ndcg(report, "keyword") >= 0.680
    assert ndcg(report, "hybrid") >= 0.722
    assert ndcg(report, "trained v1") >= 0.84
    assert ndcg(report, "trained v1", "unseen") >= ndcg(report, "hybrid", "unseen") - 0.02
    assert {line.group: line.queries for line in report.lines} == {"all": 300, "seen": 196, "unseen": 104}


@pytest.mark.nightly
def test_refreshed_keys_change_no_answer(real_engine: SearchEngine) -> None:
    collection = collection_of(real_engine, "scifact")
    if collection.live_model == "v0":
        pytest.skip("needs the trained head of the test before")
    queries = BeirFolder(DATA / "scifact").queries(Problems())[:50]
    system = System("dense", collection.live_model)
    folded = make_run(collection, queries, system, depth=10)
    collection.refresh()
    assert collection.snapshot.unfold is not None
    rebuilt = make_run(collection, queries, system, depth=10)
    for query in queries:
        assert [id for id, _ in folded[query.id]] == [id for id, _ in rebuilt[query.id]]
        scores = [[score for _, score in run[query.id]] for run in (folded, rebuilt)]
        np.testing.assert_allclose(*scores, atol=1e-4)


@pytest.fixture
def cranfield(fast_engine: SearchEngine) -> tuple[Collection, Judgements]:
    """The first 300 documents and the queries that these are judged for; with --nightly all of them."""
    collection = collection_of(fast_engine, "cranfield", by_size(300, None))
    judged = read_judgements(DATA / "cranfield", "test", DATA / "cranfield" / "source_docs.tsv")
    rows = collection.snapshot.rows(collection.snapshot.visible())
    ids = set(collection.store.ids(rows))
    qrels = {query: {id: of[id] for id in of if id in ids} for query, of in judged.qrels.items()}
    qrels = {query: of for query, of in qrels.items() if any(grade > 0 for grade in of.values())}
    queries = [query for query in judged.queries if query.id in qrels]
    return collection, replace(judged, queries=queries, qrels=qrels)


def test_cranfield_untrained(cranfield: tuple[Collection, Judgements]) -> None:
    collection, judged = cranfield
    assert collection.describe().documents == by_size(300, 1398)  # two of 1,400 are empty
    report = compare_systems(collection, judged)
    assert report.lines[0].queries == by_size(114, 225)
    # Of all documents .424 was asked for; see README, Results.
    for system, of_part, of_all in (
        ("dense", 0.4959, 0.4135),
        ("keyword", 0.4749, 0.415),
        ("hybrid", 0.5368, 0.474),
    ):
        assert ndcg(report, system) == pytest.approx(by_size(of_part, of_all), abs=0.005), system


def test_outside_evaluators_agree(cranfield: tuple[Collection, Judgements], tmp_path: Path) -> None:
    ir_measures = pytest.importorskip("ir_measures")
    collection, judged = cranfield
    judged = replace(judged, exclude={})
    report = compare_systems(collection, judged)
    path = tmp_path / "run.trec"
    write_trec(make_run(collection, judged.queries), path, "test")
    grades = {query: {id: int(grade) for id, grade in of.items()} for query, of in judged.qrels.items()}
    run = {query: dict(hits) for query, hits in read_trec(path).items()}
    for theirs, ours in {"nDCG@10": "nDCG@10", "R@100": "Recall@100", "RR@10": "RR@10"}.items():
        found = ir_measures.calc_aggregate([ir_measures.parse_measure(theirs)], grades, run)
        assert next(iter(found.values())) == pytest.approx(report.cell("hybrid", ours).mean, abs=1e-6)

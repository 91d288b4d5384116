"""The figures that README states, on the collections they are stated for."""

from __future__ import annotations

import numpy as np
import pytest
from support.real_data import DATA, collection_of

from dsearch.cli.commands.evaluate import compare_systems, read_judgements
from dsearch.corpus import BeirFolder, Problems
from dsearch.engine import SearchEngine, System, make_run
from dsearch.evaluation import EvaluationReport, read_trec, write_trec
from dsearch.training import examples_from_judgements, finetune


def ndcg(report: EvaluationReport, system: str, group: str = "all") -> float:
    return report.cell(system, "nDCG@10", group).mean


@pytest.mark.nightly
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


def test_cranfield_untrained(fast_engine: SearchEngine) -> None:
    collection = collection_of(fast_engine, "cranfield")
    assert collection.describe().documents == 1398  # two are empty
    judged = read_judgements(DATA / "cranfield", "test", DATA / "cranfield" / "source_docs.tsv")
    report = compare_systems(collection, judged)
    assert report.lines[0].queries == 225
    # .424 was asked for; see README, Results.
    assert ndcg(report, "dense") == pytest.approx(0.4135, abs=0.005)
    assert ndcg(report, "keyword") == pytest.approx(0.415, abs=0.005)
    assert ndcg(report, "hybrid") == pytest.approx(0.474, abs=0.005)


def test_outside_evaluators_agree(fast_engine: SearchEngine, tmp_path) -> None:  # type: ignore[no-untyped-def]
    ir_measures = pytest.importorskip("ir_measures")
    collection = collection_of(fast_engine, "cranfield")
    judged = read_judgements(DATA / "cranfield", "test")
    report = compare_systems(collection, judged)
    path = tmp_path / "run.trec"
    write_trec(make_run(collection, judged.queries), path, "test")
    grades = {query: {id: int(grade) for id, grade in of.items()} for query, of in judged.qrels.items()}
    run = {query: dict(hits) for query, hits in read_trec(path).items()}
    for theirs, ours in {"nDCG@10": "nDCG@10", "R@100": "Recall@100", "RR@10": "RR@10"}.items():
        found = ir_measures.calc_aggregate([ir_measures.parse_measure(theirs)], grades, run)
        assert next(iter(found.values())) == pytest.approx(report.cell("hybrid", ours).mean, abs=1e-6)

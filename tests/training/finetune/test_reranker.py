"""A reranker's score is one more feature of a second stage: fitted, gated, served, explained, stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder
from support.training.rerankers import cross_encoder_folder
from support.training.second_stages import Judgements, judged_collection

from dsearch.attention.late_interaction import FEATURES, RerankerIdentity
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.cluster.search.second_stage import RerankQuery, stage_over
from dsearch.encoder.reranker import TextReranker, load_reranker
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.models.tensors import head_bytes, head_from_bytes
from dsearch.engine.search.queries import tokens_of
from dsearch.engine.state import caches
from dsearch.engine.state.caches import RerankerScores, identity_of
from dsearch.errors import InvalidRequest, NotInCluster, RerankerUnavailable
from dsearch.jobs import TrainingJob
from dsearch.service.tasks.results import register_learned, write_learned
from dsearch.training import JobResult, run_training
from dsearch.training.data.examples import examples_from_judgements
from dsearch.training.finetune import second_stage
from dsearch.training.finetune.stage_fit import (
    METHODS,
    RERANKED_METHODS,
    CandidateLists,
    FitMethod,
    chosen_method,
    fitted,
    lists_of,
)

TERMS = 2 + len(FEATURES)
QUERY = "a3 c5"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cross_encoder_folder(tmp_path_factory.mktemp("rerankers") / "cross")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    encoder = HashingEncoder()
    with SearchEngine(tmp_path_factory.mktemp("homes") / "home", encoder=lambda: encoder) as engine:
        yield engine


@pytest.fixture(scope="module")
def by_reranker(opened: SearchEngine, folder: Path) -> tuple[Collection, TrainingJob]:
    """A collection in which that document answers a query that the reranker says."""
    collection, queries, _ = judged_collection(opened)
    model = load_reranker(str(folder))
    judgements: Judgements = {}
    for name, text in queries.items():
        hits = collection.search(text, limit=20).hits
        scores = model.scores(text, [f"{hit.title} {hit.text}" for hit in hits])
        judgements[name] = {hits[int(scores.argmax())].id: 1.0}
    job = TrainingJob(
        queries=queries, judgements=judgements, epochs=1, memory=False, tune=False, reranker=str(folder)
    )
    return collection, job


@pytest.fixture(scope="module")
def trained(by_reranker: tuple[Collection, TrainingJob]) -> tuple[Collection, TrainingJob, JobResult]:
    """Trained once and registered once; chosen_method has tests of its own, and each choice is fifty fits."""
    collection, job = by_reranker
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(second_stage, "chosen_method", lambda *_: RERANKED_METHODS[1])
        learned = run_training(collection, job)
    learned.register(collection, job)
    return collection, job, learned


def test_it_goes_live_and_is_stored_served_and_explained(
    trained: tuple[Collection, TrainingJob, JobResult],
    folder: Path,
    opened: SearchEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collection, _, learned = trained
    assert learned.second_stage is not None
    assert learned.second_stage.passed
    assert str(folder) in second_stage.stage_in_words(learned.second_stage.record)["text"]
    stored = collection.store.model(collection.live_model).record
    identity = identity_of(load_reranker(str(folder)))
    assert (stored["format"], stored["reranker"]) == (17, list(identity))

    calls: list[int] = []
    scores = TextReranker.scores

    def counted(model: TextReranker, query: str, texts: list[str]) -> np.ndarray:
        calls.append(len(texts))
        return scores(model, query, texts)

    monkeypatch.setattr(TextReranker, "scores", counted)
    with SearchEngine(opened.home.path, readonly=True, encoder=lambda: collection.encoder) as later:
        hits = later.collection("judged").search(QUERY, explain=True, limit=50).hits
        assert later.collection("judged").search(QUERY, limit=50).hits[0].id == hits[0].id
    assert calls == [50]  # the second search finds them kept
    texts = {hit.id: f"{hit.title} {hit.text}" for hit in hits}
    of_model = load_reranker(str(folder)).scores(QUERY, [texts[hit.id] for hit in hits])
    weight = collection.head(collection.live_model).second_stage.reranker_weight.item()  # type: ignore[union-attr]
    assert weight > 0
    for hit, raw in zip(hits, of_model - of_model.mean(), strict=True):
        parts = hit.explain
        assert parts is not None
        assert parts.reranker == pytest.approx(weight * raw, abs=1e-4)
        whole = parts.dense[0] + parts.keyword[0] + parts.second_stage + parts.reranker
        assert whole == pytest.approx(hit.score, abs=1e-5)


def test_a_task_registers_it_too(trained: tuple[Collection, TrainingJob, JobResult], tmp_path: Path) -> None:
    collection, job, learned = trained
    outcome = json.loads(json.dumps(write_learned(tmp_path, learned)))
    told = register_learned(tmp_path, outcome, collection, promote=True, accept=False, task="t")
    assert told["outdated_by"] == collection.live_model  # it was registered before
    stage = collection.head(told["passed"]).second_stage
    assert stage is not None
    assert stage.reranker is not None
    assert stage.reranker.name == job.reranker


def test_documents_that_were_not_reranked_have_no_part_of_it(
    trained: tuple[Collection, TrainingJob, JobResult],
) -> None:
    collection, _, _ = trained
    hits = collection.search(QUERY, explain=True, limit=20, rerank_candidates=5).hits
    assert [bool(hit.explain and hit.explain.reranker) for hit in hits] == [True] * 5 + [False] * 15


def test_another_one_under_the_name_does_not_answer(
    trained: tuple[Collection, TrainingJob, JobResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    collection, _, _ = trained
    stage = collection.ranking_head(collection.live_model).second_stage
    assert stage is not None
    assert stage.reranker is not None
    monkeypatch.setattr(stage, "reranker", stage.reranker._replace(sha256="0" * 64))
    with pytest.raises(RerankerUnavailable, match="other files than when this version was trained"):
        collection.search(QUERY)
    absent = RerankerIdentity("nobody/nothing", "cross-encoder", "0" * 64)
    monkeypatch.setattr(stage, "reranker", absent)
    with pytest.raises(RerankerUnavailable, match="search with stages=1"):
        collection.search(QUERY)
    assert collection.search(QUERY, stages=1).hits


def test_noise_has_no_weight(by_reranker: tuple[Collection, TrainingJob]) -> None:
    """A reranker is kept where it brings more than its standard error over the best without it."""
    collection, job = by_reranker
    assert job.queries is not None
    assert job.judgements is not None
    examples = examples_from_judgements(collection, job.queries, job.judgements)
    tokens = tokens_of(collection, examples.texts, examples.snapshot)
    identity = identity_of(load_reranker(str(job.reranker)))
    lists = lists_of(examples, tokens, collection.head("v0"), range(len(examples)), model=identity)
    assert lists.features.shape[2] == TERMS
    assert chosen_method(lists, examples, 0) in RERANKED_METHODS
    drawn = torch.Generator().manual_seed(0)
    lists.features[..., -1] = torch.randn(lists.features.shape[:2], generator=drawn)
    assert chosen_method(lists, examples, 0) in METHODS
    assert fitted(lists, FitMethod(pull=0.1))[-1] == 0


def test_a_lower_score_is_never_better() -> None:
    """Its weight is above 0 or nothing."""
    chance = np.random.default_rng(0)
    grades = np.eye(10)[chance.integers(10, size=60)]
    features = torch.zeros(60, 10, TERMS)
    features[..., -1] = -torch.as_tensor(grades).float()
    of = CandidateLists(
        np.tile(np.arange(10), (60, 1)),
        torch.as_tensor(chance.normal(size=(60, 10)) * 0.1).float(),
        features,
        grades,
        torch.full((60,), 0.05),
        np.arange(60),
        True,
    )
    assert fitted(of, FitMethod(pull=0.1, reranked=True))[-1] == 0


def test_scores_are_kept_within_bounds(
    engine: SearchEngine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection, _, _ = judged_collection(engine)
    monkeypatch.setattr(caches, "MAX_SCORES", 25)
    kept, rows = RerankerScores(collection.store), collection.store.rows()[:20]
    identity = identity_of(load_reranker(str(folder)))
    first = kept.of(identity, QUERY, rows)
    assert len(kept) == 20
    kept.of(identity, "another", rows)
    assert len(kept) == 25
    np.testing.assert_allclose(kept.of(identity, QUERY, rows), first, atol=1e-5)


@pytest.mark.parametrize("options", [{"source": "feedback"}, {"scope": "full"}])
def test_it_is_refused_where_there_is_no_second_stage(
    by_reranker: tuple[Collection, TrainingJob], options: dict[str, str]
) -> None:
    collection, job = by_reranker
    other = TrainingJob(queries=job.queries, judgements=job.judgements, reranker=job.reranker, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="reranker: for judged queries, in scope head"):
        run_training(collection, other)


def test_shards_say_that_they_have_none() -> None:
    from dsearch.attention.retrieval.head import Head

    stage = SecondStage(reranker=RerankerIdentity("some/model", "cross-encoder", "0" * 64))
    head = Head(8).reranking(stage)
    with pytest.raises(NotInCluster, match="'some/model', which shards do not run"):
        stage_over(RerankQuery(None, 10, []), True, head, "hybrid")
    assert stage_over(RerankQuery(1, 10, []), True, head, "hybrid") is None


def test_a_head_that_is_sent_names_no_reranker() -> None:
    """Its name is not among the tensors: nobody makes a server load a model by sending one."""
    from dsearch.attention.retrieval.head import Head

    stage = SecondStage(reranker=RerankerIdentity("some/model", "cross-encoder", "0" * 64))
    with pytest.raises(InvalidRequest, match=r"second_stage\.reranker_weight"):
        head_from_bytes(head_bytes(Head(8).reranking(stage)), 8)

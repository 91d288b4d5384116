"""Every verdict enters the ledger, whoever asked for it, and leaves less to the next candidate."""

from __future__ import annotations

import pytest
import torch
from support.training.topics import queries_of, topics_in

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine, calls
from dsearch.engine.models.ledger import Tries
from dsearch.jobs import ExampleScores, JudgedQueries, SavingJob, TrainingJob, TuningJob
from dsearch.training import judge_version, run_training, run_tuning, save_model

TEXTS, JUDGED = queries_of()
SAME = [0.1 * n for n in range(12)]
LESS = [0.09 * n for n in range(12)]
BETTER = [0.11 * n + 1 for n in range(12)]


@pytest.fixture
def topics(engine: SearchEngine) -> Collection:
    return topics_in(engine)


def test_trainings_tunings_and_layers_on_the_same_judgements_are_one_account(topics: Collection) -> None:
    tuning, training = (
        job(queries=TEXTS, judgements=JUDGED, promote=False) for job in (TuningJob, TrainingJob)
    )
    run_tuning(topics, tuning).register(topics, tuning)
    run_training(topics, training).register(topics, training)
    other = Head(topics.store.dimension)
    with torch.no_grad():
        other.query_delta += torch.randn(other.query_delta.shape, generator=torch.Generator().manual_seed(0))
    save_model(topics, other, evidence=JudgedQueries(TEXTS, JUDGED))
    save_model(topics, topics.head("v0"), evidence=JudgedQueries(TEXTS, JUDGED))  # changes nothing: no try
    verdicts = topics.store.verdicts()
    assert [(verdict.kind, verdict.version) for verdict in verdicts] == [
        ("tune", "v1"),
        ("head", "v2"),
        ("layer", "v3"),
    ]
    assert {len(verdict.queries) for verdict in verdicts} == {len(set(TEXTS.values()))}


def test_refused_scores_leave_less_until_figures_are_withheld_and_a_deletion_changes_nothing(
    topics: Collection,
) -> None:
    evidence = ExampleScores(SAME, LESS)
    saved = [save_model(topics, topics.head("v0"), evidence=evidence) for _ in range(5)]
    topics.delete_model(saved[0].version)
    records = [topics.store.model(one.version).record for one in saved[1:]]
    assert [record["ledger"]["refusals"] for record in records] == [1, 2, 3, 4]
    assert [record["gate"]["alpha"] for record in records] == [Tries(n).alpha(0.05) for n in (1, 2, 3, 4)]
    assert [record["gate"].get("withheld", False) for record in records] == [False, False, True, True]
    assert all("queries" not in record["ledger"] for record in records)
    assert saved[-1].live is None
    assert "held out" not in saved[-1].sentence
    tries = calls.list_models(topics).tries
    assert tries is not None
    assert (tries.refusals, tries.left) == (5, Tries(5).left)


def test_a_version_judged_later_enters_too_and_a_pass_earns_the_wealth_back(
    topics: Collection,
) -> None:
    save_model(topics, topics.head("v0"), evidence=ExampleScores(SAME, LESS))
    kept = save_model(topics, topics.head("v0"))
    assert len(topics.store.verdicts()) == 1
    assert judge_version(topics, kept.version, SavingJob(before=SAME, after=BETTER)).live == kept.version
    assert [verdict.passed for verdict in topics.store.verdicts()] == [False, True]
    tries = calls.list_models(topics).tries
    assert tries is not None
    assert (tries.refusals, tries.left) == (0, 1)

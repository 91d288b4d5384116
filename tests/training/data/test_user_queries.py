"""Queries like those of users judge what was learned from the corpus, as it is served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.jobs import TrainingJob
from dsearch.training import TrainingResult, examples_from_corpus, run, run_training
from dsearch.training.data import user_queries
from dsearch.training.data.user_queries import user_like_queries, with_judging_queries
from dsearch.training.finetune.feedback import TrustedSlice
from dsearch.training.gate.held_out import Answers
from dsearch.types import Document

COUNT = 120


def prose(number: int) -> Document:
    text = f"The first sentence says a thing about item{number}. The second one of item{number} says another."
    return Document(f"d{number}", text, f"Report on item{number}")


@pytest.fixture
def reports(engine: SearchEngine) -> Collection:
    collection = engine.create("reports")
    collection.ingest([prose(number) for number in range(COUNT)])
    return collection


def test_titles_beginnings_and_remembered_words_take_turns() -> None:
    queries = {id: query for query, id in user_like_queries([prose(n) for n in range(6)])}
    assert queries["d0"] == "Report on item0"
    assert queries["d1"] == "the first sentence says a thing about item1"
    assert set(queries["d2"].split()) <= set(prose(2).content.lower().replace(".", "").split())
    assert user_like_queries([Document("a", "", "Two words"), Document("b", "short")]) == []
    twins = [Document("a", "some text", "Same title"), Document("b", "other text", "Same title")]
    assert user_like_queries([twins[0], prose(1), prose(2), twins[1]])[0][1] != "a"


def test_documents_that_judge_are_not_learned_from(reports: Collection) -> None:
    every = examples_from_corpus(reports)
    learned, judging = with_judging_queries(reports, every)
    assert judging is not None
    assert len(judging) == COUNT // 5
    documents = {int(at) for positions, _ in judging.relevant for at in positions}
    assert not documents & {int(at) for positions, _ in learned.relevant for at in positions}
    assert len(learned) == len(every) * 4 // 5
    assert learned.digest == every.digest


def test_queries_of_users_may_not_lose(reports: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences decide whether a head gains; whatever they say, it may not cost users' queries much."""
    monkeypatch.setattr(run, "finetune", passing(run.finetune))
    job = TrainingJob(self_supervised=True, epochs=1)
    trained = run_training(reports, job).result
    assert isinstance(trained, TrainingResult)
    (whole, *_) = trained.record["gate_on_user_queries"]["slices"]
    assert whole["queries"] == COUNT // 5
    assert whole["before"] == pytest.approx(1.0, abs=0.2)  # keywords answer most of them
    assert trained.gate.passed

    answers = TrustedSlice.answers

    def with_losses(self: TrustedSlice, heads: Sequence[Head]) -> list[Answers]:
        before, after = answers(self, heads)
        return [before, replace(after, all=after.all - 0.1)]

    monkeypatch.setattr(TrustedSlice, "answers", with_losses)
    harmful = run_training(reports, job).result
    assert isinstance(harmful, TrainingResult)
    assert harmful.gate.verdict == "refused"
    assert "queries like those of users" in harmful.gate.reason
    assert "(allowed 0.1)" in harmful.gate.reason

    monkeypatch.setattr(user_queries, "FEWEST_JUDGING", COUNT)  # without the defence sentences decide
    alone = run_training(reports, job).result
    assert isinstance(alone, TrainingResult)
    assert alone.gate.passed
    assert "gate_on_user_queries" not in alone.record


def passing(train: Callable[..., TrainingResult]) -> Callable[..., TrainingResult]:
    """The training, as if its sentences had passed."""

    def trained(*arguments: Any, **named: Any) -> TrainingResult:
        result = train(*arguments, **named)
        return replace(result, gate=replace(result.gate, verdict="passed", reason="sentences rose"))

    return trained

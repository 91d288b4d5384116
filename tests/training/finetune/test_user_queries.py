"""Queries like those of users judge what was learned from the corpus, as it is served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.jobs import TrainingJob
from dsearch.store import Event, Impression
from dsearch.training import TrainingResult, examples_from_corpus, run, run_training
from dsearch.training.finetune import user_queries
from dsearch.training.finetune import user_queries as as_served
from dsearch.training.finetune.feedback import TrustedSlice
from dsearch.training.finetune.user_queries import (
    FEWEST_JUDGING,
    logged_queries,
    user_like_queries,
    with_judging_queries,
)
from dsearch.training.gate.gate import Gate, judge
from dsearch.training.gate.held_out import Answers, Headroom
from dsearch.training.loop.loop import Observer
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
    shared = [(np.append(at, (at + 1) % COUNT), np.ones(2, np.float32)) for at, _ in every.relevant]
    learned, _ = with_judging_queries(reports, replace(every, relevant=shared))  # sentences of two documents
    assert not documents & {int(at) for positions, _ in learned.relevant for at in positions}


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
        return [before, replace(after, all=after.all - 0.1, precision=after.evidence - 0.1)]

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


def test_logged_queries_may_not_lose_either(reports: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries that people reacted to are judged as served; too few of them are not."""
    monkeypatch.setattr(run, "finetune", passing(run.finetune))
    answers = TrustedSlice.answers

    def logged_lose(self: TrustedSlice, heads: Sequence[Head]) -> list[Answers]:
        before, after = answers(self, heads)
        lost = 0.1 if self.displayed is not None else 0.0
        return [before, replace(after, all=after.all - lost, precision=after.evidence - lost)]

    monkeypatch.setattr(TrustedSlice, "answers", logged_lose)
    job = TrainingJob(self_supervised=True, epochs=1)
    react(reports, range(FEWEST_JUDGING - 1))
    assert logged_queries(reports) is None
    react(reports, [FEWEST_JUDGING - 1])
    assert logged_queries(reports) is not None
    monkeypatch.setattr(as_served, "FEWEST_JUDGING", FEWEST_JUDGING + 1)
    few = run_training(reports, job).result
    assert isinstance(few, TrainingResult)
    assert few.gate.passed
    assert "gate_on_logged_queries" not in few.record

    react(reports, range(FEWEST_JUDGING, FEWEST_JUDGING + 5))
    listener = Listener()
    harmful = run_training(reports, job, listener).result
    assert isinstance(harmful, TrainingResult)
    assert harmful.gate.verdict == "refused"
    assert f"{FEWEST_JUDGING + 5} logged queries, with keywords" in harmful.gate.reason
    assert harmful.record["gate"]["verdict"] == "refused"
    (whole, *_) = harmful.record["gate_on_logged_queries"]["slices"]
    assert whole["queries"] == FEWEST_JUDGING + 5
    assert whole["before"] > 0.5
    assert any("logged queries" in line for line in listener.lines)


def test_of_many_logged_queries_some_judge(reports: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    react(reports, range(40))
    monkeypatch.setattr(as_served, "MOST_JUDGING", 30)
    one, other, third = (logged_queries(reports, seed) for seed in (0, 0, 1))
    assert one is not None
    assert other is not None
    assert third is not None
    assert len(one.examples) == 30
    assert one.examples.texts == other.examples.texts != third.examples.texts
    assert len(one.shown_positions()) == 30


@pytest.mark.parametrize("own", ["", "documents", "encoder", "score"])
def test_a_loss_is_held_against_the_harm_that_is_allowed(
    reports: Collection, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    """An even chance of a loss beyond the margin; what has one of these itself cannot be compared."""
    answers = TrustedSlice.answers

    def at_the_margin(self: TrustedSlice, heads: Sequence[Head]) -> list[Answers]:
        before, _ = answers(self, heads)
        return [before, replace(before, all=before.all - 0.03)]

    monkeypatch.setattr(TrustedSlice, "answers", at_the_margin)
    if own == "documents":
        monkeypatch.setattr(type(reports), "has_documents_of", lambda *_: True)
    if own == "encoder":
        monkeypatch.setattr(type(reports), "encoder_of", lambda *_: HashingEncoder(name="of its own"))
    if own == "score":
        monkeypatch.setattr(type(reports), "head", lambda *_: SimpleNamespace(learned_score=object()))
    _, judging = with_judging_queries(reports, examples_from_corpus(reports))
    gate = Gate(alpha=0.99, harm=0.01)
    passed = replace(judge(None, None, gate), verdict="passed")
    room = Headroom(1, 1, 0.5, 0.5, 0.5)
    trained = TrainingResult(head=Head(32), record={}, gate=passed, epochs=1, headroom=room)
    result = as_served.ServedQueries(judging, None).judged(reports, trained, gate)
    assert result.gate.verdict == ("passed" if own else "refused")
    assert (result is trained) is bool(own)


class Listener(Observer):
    """Keeps the remarks."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def remark(self, text: str) -> None:
        self.lines.append(text)


def react(collection: Collection, numbers: Iterable[int]) -> None:
    """Somebody clicks the report on an item, below others, when asking for it."""
    for n in numbers:
        name, shown = f"q{n}", tuple(f"d{(n + k) % COUNT}" for k in (3, 2, 1, 0))
        page = Impression(name, f"what about item{n}", 0.0, ids=shown)
        click = Event(name, name, f"key{n % 3}", "", "click", f"d{n}", 4, 0.0, 0.0)
        collection.feedback.record([page], [click])


def passing(train: Callable[..., TrainingResult]) -> Callable[..., TrainingResult]:
    """The training, as if its sentences had passed."""

    def trained(*arguments: Any, **named: Any) -> TrainingResult:
        result = train(*arguments, **named)
        return replace(result, gate=replace(result.gate, verdict="passed", reason="sentences rose"))

    return trained

"""What agents found useful answers later queries, behind the gate, and poison does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.training.topics import EACH, TOPICS, queries_of, topics_in

from dsearch.attention.memory_rows import KEY_SHARE
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import Conflict
from dsearch.jobs import TrainingJob
from dsearch.store import Event, Impression, MemoryRow
from dsearch.training import Gate, JobResult, TrainingOptions, examples_from_judgements, ranking, run_training
from dsearch.training.data.clicks import even_propensities
from dsearch.training.finetune import outcomes as module
from dsearch.training.finetune.feedback import TrustedSlice
from dsearch.training.gate.held_out import Answers
from dsearch.training.memory_values import MemorySetting

TEXTS, JUDGEMENTS = queries_of()
AGENTS = 6


@pytest.fixture
def topics(engine: SearchEngine) -> Collection:
    return topics_in(engine)


def report(collection: Collection, key: str, query: str, useful: str, *, shown: list[str]) -> None:
    """One task: a page was seen, one document of it was of use."""
    name = f"{key}-{query}"
    ids = tuple(dict.fromkeys([useful, *shown]))
    page = Impression(name, TEXTS[query], 0.0, ids=ids)
    collection.feedback.record([page], [Event(name, name, key, "", "used", useful, 1, 0.0, 0.0)])


def honest(collection: Collection, *, liars: int = 0) -> None:
    """Agents ask three wordings of each topic; the fourth judges."""
    for topic in range(TOPICS):
        for n in range(EACH - 1):
            agent = (topic + n) % AGENTS
            other = f"d{(topic + 5) % TOPICS}-0"
            right, wrong = (f"d{topic}-0", other)
            useful, left = (wrong, right) if agent < liars else (right, wrong)
            report(collection, f"client:{agent}", f"q{topic:02}-{n}", useful, shown=[left])


def learned(collection: Collection) -> JobResult:
    judging = {query: of for query, of in JUDGEMENTS.items() if query.endswith("-3")}
    job = TrainingJob(
        source="feedback",
        queries={query: TEXTS[query] for query in judging},
        judgements=judging,
        epochs=1,
    )
    result = run_training(collection, job)
    result.register(collection, job)
    return result


def answered(collection: Collection) -> int:
    """Topics of which a new wording finds the document that agents used."""
    queries = [f"question{topic} about{topic} again" for topic in range(TOPICS)]
    hits = [result.hits[0].id for result in collection.search_batch(queries, limit=1)]
    return sum(id == f"d{topic}-0" for topic, id in enumerate(hits))


def test_outcomes_answer_similar_queries_and_are_taken_back(topics: Collection) -> None:
    honest(topics)
    before, untrained = topics.store.sequence, answered(topics)
    result = learned(topics)
    assert result.outcomes is not None
    assert result.outcomes.gate.passed, result.outcomes.gate.reason
    assert not result.result.gate.passed  # one of the two goes live
    version = topics.live_model
    assert topics.store.model(version).record["scope"] == "outcomes"
    rows = topics.remembered.rows()
    assert len(rows) == TOPICS * (EACH - 1)
    assert {row.text for row in rows} == {""}
    assert {row.source for row in rows} == {"clicks"}
    assert len({row.key for row in rows}) == AGENTS
    assert answered(topics) >= untrained + 3  # of careful strengths
    explain = topics.search("question3 about3 again", explain=True).hits[0].explain
    assert explain is not None
    assert explain.past_queries[0].query is None
    assert topics.store.verify().ok

    again = learned(topics)
    assert again.outcomes is None  # nothing new was reported
    topics.remembered.drop_after(before)
    assert topics.remembered.rows() == ()
    assert answered(topics) == untrained


def test_the_setting_gains_most_less_its_standard_error() -> None:
    gains = np.zeros((len(module.GRID), 40))
    gains[2] = 0.02
    gains[4] = 0.03 + 0.1 * np.where(np.arange(40) % 2, 1, -1)  # its standard error is .016
    assert module._best(gains) == 2  # pyright: ignore[reportPrivateUsage]
    few = gains[:, :19]
    assert module.GRID[module._best(few)] == MemorySetting(0.2, 0.07, 0.5)  # pyright: ignore[reportPrivateUsage]


def test_a_query_has_no_part_in_the_choice_of_the_setting_that_answers_it() -> None:
    """Of 40 queries one loses so much by the best setting of the others that all of them choose another."""
    before = Answers(np.full(40, 0.9), np.zeros(40, bool), np.full(40, 0.9))
    gains = np.zeros((len(module.GRID), 40))
    gains[1], gains[2] = 0.01, 0.02
    gains[2, 7] = -0.9
    values = [Answers(before.all + of, before.seen, before.unseen + 2 * of) for of in gains]
    setting, crossed = module._crossed(before, values, 0)  # pyright: ignore[reportPrivateUsage]
    assert setting == module.GRID[1]
    changes = crossed.all - before.all
    assert changes[7] == pytest.approx(-0.9)
    assert np.isclose(changes, 0.01).sum() == 36  # the folds that know of it
    np.testing.assert_allclose(crossed.unseen - before.unseen, 2 * changes, atol=1e-12)


def test_rows_that_are_inserted_are_those_that_were_judged(topics: Collection) -> None:
    honest(topics)
    result = learned(topics)
    assert result.outcomes is not None
    judged, live = result.outcomes.with_rows.memory, topics.head(topics.live_model).memory
    assert judged is not None
    assert live is not None
    states = torch.as_tensor(topics.encoder.encode_queries(["question3 about3 again", "question9 about2"]))
    one, other = (memory(states).relevance[:, memory.rows.argsort()] for memory in (judged, live))
    assert torch.allclose(one, other, atol=1e-5)


def test_rows_of_another_key_are_new_where_the_query_is_known(topics: Collection) -> None:
    honest(topics)
    known, _ = module.rows_of_feedback(topics, list(topics.feedback.pages()), even_propensities())
    topics.remembered.add(known)
    report(topics, "client:late", "q03-0", "d3-0", shown=["d8-0"])
    new, _ = module.rows_of_feedback(topics, list(topics.feedback.pages()), even_propensities())
    assert [row.key for row in new] == ["client:late"]


def test_what_was_of_use_has_to_be_there_still(topics: Collection) -> None:
    """What was left beside it says nothing alone."""
    honest(topics)
    topics.delete(["d3-0"])
    rows, _ = module.rows_of_feedback(topics, list(topics.feedback.pages()), even_propensities())
    assert len(rows) == (TOPICS - 1) * (EACH - 1)
    assert all(max(row.grades.values()) > 0 for row in rows)


def test_a_text_has_the_embedding_that_its_earlier_rows_have(topics: Collection) -> None:
    """Another batch gave another one, by some bits."""
    texts = ["new words here", TEXTS["q03-0"], TEXTS["q05-0"]]
    plain = topics.encoder.encode_queries(texts)
    noise = np.random.default_rng(0).normal(0, 1e-5, plain.shape).astype(np.float32)
    earlier = plain + noise
    earlier /= np.linalg.norm(earlier, axis=1, keepdims=True)
    before = [MemoryRow("", state, {1: 1.0}, "clicks", "k") for state in earlier[[2, 1]]]
    states = module._states(topics, texts, before)  # pyright: ignore[reportPrivateUsage]
    np.testing.assert_array_equal(states[1:], earlier[1:])
    np.testing.assert_allclose(states[0], plain[0], atol=1e-7)


def trusted_slice(topics: Collection) -> TrustedSlice:
    judging = {query: of for query, of in JUDGEMENTS.items() if query.endswith("-3")}
    examples = examples_from_judgements(topics, TEXTS, judging)
    return TrustedSlice.of(examples.subset([]), examples, TrainingOptions())


def test_rows_are_judged_beside_those_that_are_there(
    topics: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory that begins has them all; one that is live keeps its setting."""
    honest(topics)
    rows, _ = module.rows_of_feedback(topics, list(topics.feedback.pages()), even_propensities())
    topics.remembered.add(rows[:40])
    trusted = trusted_slice(topics)
    begun = module.remember_outcomes(topics, rows[40:], trusted)
    assert begun is not None
    assert begun.with_rows.memory is not None
    assert len(begun.with_rows.memory) == len(rows)
    assert begun.record["setting"] is not None
    setting = MemorySetting(0.3, 0.06, 0.4)
    record = {"live": topics.live_model, "setting": setting._asdict(), "scope": module.SCOPE}
    assert module.remember_rows(topics, [], record) == topics.live_model
    monkeypatch.setattr(
        TrustedSlice, "bounded", lambda _, report, *heads: replace(report, verdict="refused", reason="lifted")
    )
    further = module.remember_outcomes(topics, rows[40:], trusted)
    assert further is not None
    assert further.with_rows.memory is not None
    assert len(further.with_rows.memory) == len(rows)
    assert further.with_rows.memory.setting[:3] == pytest.approx(setting[:3])
    assert further.record["setting"] is None
    assert (further.gate.verdict, further.record["gate"]["reason"]) == ("refused", "lifted")
    module.remember_rows(topics, rows[40:], {**record, "live": topics.live_model, "setting": None})
    live, stored = topics.head(topics.live_model).memory, topics.stored_head(topics.live_model).memory
    assert live is not None
    assert stored is not None
    assert (len(live), len(stored)) == (len(rows), 0)  # so that a rollback takes the rows back


def test_rows_answer_in_place_of_what_they_were_judged_with_alone(
    topics: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version goes live between the copy of the live one and its promotion."""
    other, add = topics.add_model(topics.head("v0"), {}), topics.add_model
    setting = MemorySetting(0.3, 0.06, 0.4)._asdict()

    def promoted_meanwhile(*args: Any, **options: Any) -> str:
        version = add(*args, **options)
        topics.promote(other)
        return version

    monkeypatch.setattr(topics, "add_model", promoted_meanwhile)
    state = topics.encoder.encode_queries(["question3 about3"])[0]
    (at,) = topics.store.rows_of(["d3-0"]).values()
    rows = [MemoryRow("", state, {at: 1.0}, "clicks", "k")]
    with pytest.raises(Conflict):
        module.remember_rows(topics, rows, {"live": "v0", "setting": setting, "scope": module.SCOPE})
    assert (topics.live_model, topics.remembered.rows()) == (other, ())


def test_rows_and_a_head_share_what_chance_is_allowed(topics: Collection) -> None:
    honest(topics)
    result = learned(topics)
    assert result.outcomes is not None
    of_rows, of_head = result.outcomes.gate.gate, result.result.gate.gate
    assert of_rows.alpha + of_head.alpha == pytest.approx(Gate().alpha)
    assert min(of_rows.alpha, of_head.alpha) > 0


def test_without_rows_a_head_is_judged_by_all_of_it(topics: Collection) -> None:
    honest(topics)
    learned(topics)
    again = learned(topics)
    assert again.outcomes is None
    assert again.result.gate.gate.alpha == Gate().alpha


def test_a_flood_of_one_key_moves_few_answers_of_the_honest_rows(topics: Collection) -> None:
    honest(topics)
    untrained = answered(topics)
    for topic in range(TOPICS):
        for n in range(EACH - 1):
            report(topics, "client:flood", f"q{topic:02}-{n}", "d0-2", shown=[f"d{topic}-0"])
    result = learned(topics)
    assert result.outcomes is not None
    assert answered(topics) >= untrained


def test_when_all_lie_nothing_goes_live(topics: Collection) -> None:
    honest(topics, liars=AGENTS)
    result = learned(topics)
    assert topics.live_model == "v0"
    assert topics.remembered.rows() == ()
    assert result.outcomes is None or not result.outcomes.gate.passed


def own_rows_alone(topics: Collection) -> float:
    """The gain that the gate sees where agents asked for nothing but the queries that judge."""
    for topic in range(TOPICS):
        report(topics, f"client:{topic % AGENTS}", f"q{topic:02}-3", f"d{topic}-0", shown=["d0-2"])
    result = learned(topics)
    assert result.outcomes is not None
    whole = result.outcomes.gate.slice("all")
    assert whole.difference is not None
    return whole.difference.mean


def test_a_query_is_not_judged_by_rows_of_its_own(topics: Collection) -> None:
    assert own_rows_alone(topics) == pytest.approx(0, abs=0.01)


def test_with_rows_of_their_own_queries_would_seem_to_gain(
    topics: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "ALIKE", 2.0)
    assert own_rows_alone(topics) > 0.04


def test_one_key_changes_no_score_by_more_than_its_share(topics: Collection) -> None:
    """A hundred rows of one key next to a query; the same rows of a hundred keys would change more."""
    setting = MemorySetting(0.8, 0.07, 0.5)
    none = module.remember_rows(
        topics, [], {"live": topics.live_model, "setting": setting._asdict(), "scope": module.SCOPE}
    )
    assert none == topics.live_model
    query = "question3 about3 again"
    (target,) = topics.store.rows_of(["d9-0"]).values()
    before, sequence = scores(topics, query), topics.store.sequence
    state = topics.encoder.encode_queries([query])[0]

    def change(keys: list[str]) -> float:
        rows = [MemoryRow("", state, {target: 1.0}, "clicks", key) for key in keys]
        topics.remembered.add(rows)
        after = scores(topics, query)
        topics.remembered.drop_after(sequence)
        return max(abs(after[id] - before[id]) for id in before)

    assert change(["flood"] * 100) == pytest.approx(0.8 * KEY_SHARE, abs=1e-3)
    assert change([f"k{n}" for n in range(100)]) > 0.7
    assert scores(topics, query) == before


def scores(collection: Collection, query: str) -> dict[str, float]:
    return {hit.id: hit.score for hit in collection.search(query, limit=100).hits}

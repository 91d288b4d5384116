"""Judged queries are remembered at once: found again, listed, taken back, and kept by the next training."""

from __future__ import annotations

from typing import Any

import pytest
from support.training.topics import queries_of, topics_in

from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import Conflict, InvalidRequest
from dsearch.jobs import TrainingJob
from dsearch.training import examples_from_judgements, remember, run_training
from dsearch.training.memory import MemorySetting, memory_of
from dsearch.training.remember import KEPT

SETTING = MemorySetting(0.8, 0.05, 0.5)
NEW = "zebra quantum"  # no document and no past query has these words


@pytest.fixture
def topics(engine: SearchEngine) -> Collection:
    """With a memory of every topic but the last two."""
    topics = topics_in(engine)
    texts, judgements = queries_of()
    judged = {query: of for query, of in judgements.items() if query < "q18"}
    memory = memory_of(examples_from_judgements(topics, texts, judged), SETTING)
    assert memory is not None
    topics.promote(topics.add_model(topics.head("v0").remembering(memory), {"scope": "head"}))
    return topics


def first(collection: Collection, query: str) -> str:
    return collection.search(query).hits[0].id


def test_a_judged_query_is_found_at_once_and_taken_back(topics: Collection) -> None:
    before = first(topics, NEW)
    done = remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}})
    assert (done.model, done.previous, done.queries, done.judgements, done.left_out) == ("v2", "v1", 1, 1, {})
    hit = topics.search(NEW, explain=True).hits[0]
    assert hit.id == "d19-2" != before
    assert hit.explain is not None
    assert hit.explain.past_queries[0].query == NEW
    assert topics.store.model("v2").parent == "v1"
    assert topics.store.model("v2").record["inserted"] == 1
    assert topics.rollback() == "v1"
    assert first(topics, NEW) == before


def test_inserting_rows_is_a_memory_fitted_with_them(topics: Collection) -> None:
    texts, judgements = queries_of()
    late = {query: of for query, of in judgements.items() if query >= "q18"}
    remember(topics, {query: texts[query] for query in late}, late)
    whole = memory_of(examples_from_judgements(topics, texts, judgements), SETTING)
    assert whole is not None
    version = topics.add_model(topics.head("v0").remembering(whole), {})
    for query in ("question19 about19 more", "question3 about3 words", NEW):
        inserted, fitted = (topics.search(query, model=model).hits for model in ("v2", version))
        assert [hit.id for hit in inserted] == [hit.id for hit in fitted]
        assert [hit.weight for hit in inserted] == pytest.approx([hit.weight for hit in fitted], abs=1e-6)


def test_of_one_text_the_later_grade_counts(topics: Collection) -> None:
    """Case and blanks do not tell queries apart; other documents of the query stay."""
    remember(topics, {"q": NEW}, {"q": {"d19-2": 2.0, "d18-0": 1.0}})
    remember(topics, {"q": "Zebra  quantum"}, {"q": {"d18-0": 4.0}})
    memory = topics.head(topics.live_model).memory
    assert memory is not None
    at = list(memory.texts or []).index(NEW)
    rows = memory.rows[memory.of_document[memory.of_query == at]].tolist()
    grades = dict(zip(rows, memory.grades[memory.of_query == at].tolist(), strict=True))
    of = topics.store.rows_of(["d19-2", "d18-0"])
    assert grades == {of["d19-2"]: 1.0, of["d18-0"]: 1.0}
    assert len(memory) == 18 * 4 + 1


def test_without_a_memory_it_is_refused_unless_accepted(engine: SearchEngine) -> None:
    topics = topics_in(engine)
    with pytest.raises(Conflict, match="no query memory"):
        remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}})
    assert topics.live_model == "v0"
    remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}}, accept=True)
    assert first(topics, NEW).startswith("d19-")  # documents like the judged one borrow from it


def test_ids_of_one_text_are_one_query_of_a_new_memory_too(engine: SearchEngine) -> None:
    topics = topics_in(engine)
    texts = {"a": NEW, "b": "Zebra  quantum"}
    done = remember(topics, texts, {"a": {"d19-2": 2.0, "d18-0": 1.0}, "b": {"d18-0": 4.0}}, accept=True)
    assert (done.queries, done.judgements) == (1, 2)
    memory = topics.head(done.model).memory
    assert memory is not None
    of = topics.store.rows_of(["d19-2", "d18-0"])
    grades = dict(zip(memory.rows[memory.of_document].tolist(), memory.grades.tolist(), strict=True))
    assert grades == {of["d19-2"]: 0.5, of["d18-0"]: 1.0}


@pytest.mark.parametrize(
    ("queries", "judgements", "why"),
    [
        ({"q": NEW}, {"q": {"nothing": 1.0}}, "1 unknown documents"),
        ({"q": NEW}, {"q": {"d1-0": 0.0}}, "1 queries without a known positive"),
        ({"q": "  "}, {"q": {"d1-0": 1.0}}, "1 queries without text"),
        ({}, {}, "there are none"),
        ({"q": NEW}, {"q": {"d1-0": float("inf")}}, "finite grades"),
    ],
)
def test_what_cannot_be_remembered_says_why(
    topics: Collection, queries: dict[str, str], judgements: dict[str, dict[str, float]], why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        remember(topics, queries, judgements)
    assert topics.live_model == "v1"


def test_a_version_with_its_own_query_encoder_is_refused(
    topics: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.add_model(topics.head("v1"), {"query_encoder": {}})
    monkeypatch.setattr(type(topics), "live_model", "v2")
    with pytest.raises(Conflict, match="query encoder"):
        remember(topics, {"q": NEW}, {"q": {"d1-0": 1.0}})


def test_only_the_newest_versions_are_kept(topics: Collection) -> None:
    for n in range(KEPT + 3):
        remember(topics, {"q": f"{NEW} {n}"}, {"q": {"d19-2": 1.0}})
    versions = [model.version for model in topics.store.models()]
    assert versions == ["v1", *(f"v{n}" for n in range(5, 2 + KEPT + 3))]
    memory = topics.head(topics.live_model).memory
    assert memory is not None
    assert memory.inserted.sum() == KEPT + 3


@pytest.mark.parametrize("before", ["add_model", "promote"])
def test_another_version_that_went_live_meanwhile_is_not_lost(
    topics: Collection, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """The rows go into that one; else the promotion would take it back unseen."""
    add, promote, go_on, others = topics.add_model, topics.promote, getattr(topics, before), list[str]()

    def interrupted(*given: Any, **named: Any) -> Any:
        if not others:
            head = topics.head("v1")
            assert head.memory is not None
            others.append(add(head.remembering(head.memory.with_setting(0.3, 0.1, 0.4)), {"scope": "head"}))
            promote(others[0])
        return go_on(*given, **named)

    monkeypatch.setattr(topics, before, interrupted)
    done = remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}})
    assert done.previous == others[0]
    memory = topics.head(done.model).memory
    assert memory is not None
    assert memory.strength.item() == pytest.approx(0.3)


@pytest.mark.parametrize("meanwhile", [False, True])
def test_training_keeps_what_was_inserted(topics: Collection, meanwhile: bool) -> None:
    """Before it, or between its end and its registration."""
    if not meanwhile:
        remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}})
    texts, judgements = queries_of()
    job = TrainingJob(queries=texts, judgements=judgements, epochs=1)
    trained = run_training(topics, job)
    if meanwhile:
        remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}})
    registered = trained.register(topics, job)
    assert registered.live is not None
    memory = topics.head(registered.live).memory
    assert isinstance(memory, QueryMemory)
    assert memory.of_query[memory.inserted].tolist() == [len(texts)]
    assert first(topics, NEW) == "d19-2"

"""Judged queries are remembered at once: found again, listed, taken back, and kept by the next training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder
from support.training.topics import queries_of, topics_in

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.engine import Collection, SearchEngine, SearchLayer
from dsearch.engine.evaluate import trained_on
from dsearch.errors import Conflict, InvalidRequest
from dsearch.jobs import TrainingJob
from dsearch.store import Store, folders
from dsearch.training import examples_from_judgements, remember, run_training
from dsearch.training.memory import (
    MemorySetting,
    judged_queries,
    memory_of,
    with_inserted,
    with_remembered,
)
from dsearch.types import Query

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
    assert (done.model, done.previous, done.queries, done.judgements, done.left_out) == ("v1", "v1", 1, 1, {})
    hit = topics.search(NEW, explain=True).hits[0]
    assert hit.id == "d19-2" != before
    assert hit.explain is not None
    assert hit.explain.past_queries[0].query == NEW
    assert topics.store.verify().ok
    asked_again = [Query("again", NEW.upper())]
    assert trained_on(topics, "v1", asked_again, np.zeros((1, 32), np.float32)) == ["again"]
    assert trained_on(topics, "v0", asked_again, np.zeros((1, 32), np.float32)) == []
    dropped = topics.remembered.drop_after(done.sequence - 1)
    assert (dropped.dropped, dropped.remaining) == (1, 0)
    assert first(topics, NEW) == before


def test_inserting_rows_is_a_memory_fitted_with_them(topics: Collection) -> None:
    texts, judgements = queries_of()
    late = {query: of for query, of in judgements.items() if query >= "q18"}
    remember(topics, {query: texts[query] for query in late}, late)
    whole = memory_of(examples_from_judgements(topics, texts, judgements), SETTING)
    assert whole is not None
    inserted_head = topics.head("v1")
    for query in ("question19 about19 more", "question3 about3 words", NEW):
        states = topics.query_states([query], "hybrid")
        found = [
            SearchLayer(topics.snapshot, head).ranked(states, [query])
            for head in (inserted_head, topics.head("v0").remembering(whole))
        ]
        assert np.array_equal(found[0].positions, found[1].positions)
        assert torch.allclose(found[0].weights, found[1].weights, atol=1e-6)


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


def test_the_same_judgement_twice_counts_once(topics: Collection) -> None:
    found: list[dict[str, float]] = []
    for _ in range(2):
        remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}})
        found.append({hit.id: hit.score for hit in topics.search(NEW, limit=20).hits})
    assert found[0] == found[1]
    assert len(topics.remembered.rows()) == 2


def test_a_judged_document_that_is_deleted_is_neither_found_nor_remembered_again(topics: Collection) -> None:
    remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}})
    topics.delete(["d19-2"])
    assert "d19-2" not in [hit.id for hit in topics.search(NEW, limit=100).hits]
    with pytest.raises(InvalidRequest, match="unknown documents: 1"):
        remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}})


def test_without_a_memory_it_is_refused_unless_accepted(engine: SearchEngine) -> None:
    topics = topics_in(engine)
    with pytest.raises(Conflict, match="no query memory"):
        remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}})
    assert topics.live_model == "v0"
    remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}}, accept=True)
    assert first(topics, NEW) == "d19-2"


def test_a_begun_memory_raises_what_was_judged_and_nothing_else(engine: SearchEngine) -> None:
    """A single judged document would lend its grade to all that are like it, and not stand above them."""
    topics = topics_in(engine)
    query = "question19 about19"
    before = {hit.id: hit.score for hit in topics.search(query, limit=20).hits}
    judged = list(before)[9]
    remember(topics, {"q": query}, {"q": {judged: 1.0}}, accept=True)
    hits = topics.search(query, limit=20).hits
    assert hits[0].id == judged
    assert {hit.id: hit.score for hit in hits[1:] if hit.id in before} == pytest.approx(
        {hit.id: before[hit.id] for hit in hits[1:] if hit.id in before}
    )


def test_a_memory_begins_after_what_was_live_alone(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version goes live between the copy of the live one and its promotion."""
    topics = topics_in(engine)
    other, add = topics.add_model(Head(32), {}), topics.add_model

    def promoted_meanwhile(*args: Any, **options: Any) -> str:
        version = add(*args, **options)
        topics.promote(other)
        return version

    monkeypatch.setattr(topics, "add_model", promoted_meanwhile)
    with pytest.raises(Conflict):
        remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}}, accept=True)
    assert topics.live_model == other
    assert [model.version for model in topics.store.models()] == [other]
    assert not topics.remembered.rows()


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
        ({"q": NEW}, {"q": {"nothing": 1.0}}, "unknown documents: 1"),
        ({"q": NEW}, {"q": {"d1-0": 0.0}}, "queries without a known positive: 1"),
        ({"q": "  "}, {"q": {"d1-0": 1.0}}, "queries without text: 1"),
        ({"q": " ", "r": ""}, {"q": {"d1-0": 1.0}, "r": {"d1-0": 1.0}}, "queries without text: 2"),
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


def test_another_version_that_went_live_meanwhile_has_the_rows_too(topics: Collection) -> None:
    """Rows belong to the collection, not to the version that was live."""
    remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}})
    head = topics.stored_head("v1")
    assert head.memory is not None
    other = topics.add_model(head.remembering(head.memory.with_setting(0.3, 0.1, 0.4)), {"scope": "head"})
    topics.promote(other)
    memory = topics.head(other).memory
    assert memory is not None
    assert memory.strength.item() == pytest.approx(0.3)
    assert NEW in (memory.texts or [])
    stored = topics.stored_head(other).memory
    assert stored is not None
    assert NEW not in (stored.texts or [])


def test_a_state_keeps_its_rows(topics: Collection) -> None:
    """A stamp, of a cursor or a gradient, names the rows up to its sequence, those dropped since too."""
    sequence = topics.snapshot.sequence
    done = remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}})
    with_rows, without = (topics.head("v1", at).memory for at in (done.sequence, sequence))
    assert with_rows is not None
    assert without is not None
    assert len(with_rows) == len(without) + 1
    topics.remembered.drop_after(sequence)
    again = topics.head("v1", done.sequence).memory
    assert again is not None
    assert len(again) == len(with_rows)
    assert topics.head("v1").memory is topics.stored_head("v1").memory


def test_rows_are_there_when_it_is_opened_again_and_in_a_backup(tmp_path: Path) -> None:
    with SearchEngine(tmp_path / "home", encoder=lambda: HashingEncoder(64)) as engine:
        topics = topics_in(engine)
        done = remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}}, accept=True)
        found = [(hit.id, hit.score) for hit in topics.search(NEW).hits]
        name = topics.name
        topics.store.backup(tmp_path / "copy", None)
    with SearchEngine(tmp_path / "home", encoder=lambda: HashingEncoder(64)) as engine:
        topics = engine.collection(name)
        assert [(hit.id, hit.score) for hit in topics.search(NEW).hits] == found
        assert engine.verify(name).ok
        assert topics.live_model == done.model
    folders.restore_collection(tmp_path / "restored", tmp_path / "copy")
    with Store.open(tmp_path / "restored") as store:
        (row,) = store.judged()
        assert (row.text, row.source, row.written) == (NEW, "judgements", done.sequence)
        assert store.verify().ok


def test_rows_are_of_unit_length(topics: Collection) -> None:
    """Whatever length an encoder's are: cosines tell what is alike."""
    examples = examples_from_judgements(topics, *queries_of())
    rows = judged_queries(replace(examples, states=3 * examples.states), "key")
    np.testing.assert_allclose([np.linalg.norm(row.state) for row in rows], 1.0, rtol=1e-5)


def test_a_head_takes_over_what_was_inserted_alone(topics: Collection) -> None:
    """Of a memory that has rows of a training as well."""
    examples = examples_from_judgements(topics, *queries_of())
    own, trained, late = (memory_of(examples.subset(at), SETTING) for at in ([0], [1, 2], [3]))
    assert own is not None
    assert trained is not None
    assert late is not None
    head = with_inserted(Head(32).remembering(own), trained.extended(late))
    assert head.memory is not None
    assert sorted(head.memory.texts or []) == sorted([examples.texts[0], examples.texts[3]])
    assert with_inserted(head, trained) is head


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
    assert (memory.texts or []).count(NEW) == 1
    stored = topics.stored_head(registered.live).memory
    assert stored is not None
    assert (NEW in (stored.texts or [])) == (not meanwhile)  # training takes up what it knows
    assert first(topics, NEW) == "d19-2"


def test_a_text_that_is_judged_again_counts_once_as_it_is_judged_now(topics: Collection) -> None:
    """And one that was remembered twice is one query, with the later grade of each document."""
    twice = "walrus nebula"
    remember(topics, {"q": NEW, "r": twice}, {"q": {"d19-2": 1.0}, "r": {"d18-0": 1.0, "d18-1": 1.0}})
    remember(topics, {"r": twice.upper()}, {"r": {"d18-1": 4.0}})
    judged = {"now": {"d1-0": 1.0}}
    texts, grades = with_remembered(topics, {"now": "Zebra  quantum"}, judged)
    (remembered,) = grades.keys() - judged.keys()
    assert grades["now"] == judged["now"]
    assert (texts["now"], texts[remembered].lower()) == ("Zebra  quantum", twice)
    assert grades[remembered] == {"d18-0": 1.0, "d18-1": 4.0}
    assert len(texts) == 2
    topics.delete(["d18-0", "d18-1"])
    assert with_remembered(topics, {"now": NEW}, judged) == ({"now": NEW}, judged)


def test_a_remembered_query_takes_no_id_of_the_callers(topics: Collection) -> None:
    remember(topics, {"q": NEW}, {"q": {"d19-2": 1.0}})
    given, judged = {"remembered 0": "walrus nebula"}, {"remembered 0": {"d18-0": 1.0}}
    texts, grades = with_remembered(topics, given, judged)
    assert grades == judged | {"remembered 1": {"d19-2": 1.0}}
    assert texts == given | {"remembered 1": NEW}

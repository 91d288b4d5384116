"""What a person said about hits becomes judgements, and the queries that tell most come next."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient
from support.fakes import HashingEncoder
from support.service.apps import patient_app
from support.training.topics import topics_in

from dsearch.attention.retrieval.head import Head
from dsearch.client.local.engine import LocalEngine
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.store import Event, Impression
from dsearch.training import judging
from dsearch.training.judging import difference_of, own_judgements, queries_to_judge, write_opinions
from dsearch.types import Document

ORIGIN = "http://127.0.0.1"


def _opinion(
    query: str, document: str, action: str, client: str, at: str = "2026-01-01T00:00:00Z"
) -> dict[str, str]:
    return {
        "user_query": query,
        "object_id": document,
        "action_name": action,
        "client_id": client,
        "timestamp": at,
    }


OPINIONS = [
    _opinion("alpha1 question", "d1-0", "thumbs_up", "ann"),
    _opinion("Alpha1  question", "d1-1", "thumbs_down", "ann"),
    _opinion("alpha2 question", "d2-0", "thumbs_down", "ann"),
    _opinion("alpha3 question", "d3-0", "click", "ann"),
    _opinion("alpha4 question", "d4-0", "thumbs_up", "bob"),
]


def test_opinions_of_one_person_are_judgements_over_http_and_here(tmp_path: Path) -> None:
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        topics = topics_in(engine)
        with TestClient(patient_app(engine), base_url=ORIGIN) as client:
            assert client.post("/v1/collections/topics/feedback", json=OPINIONS).status_code == 200
            url = "/v1/collections/topics/judgements"
            answer = client.get(url, params={"client_id": "ann"}).json()
            assert answer["judgements"] == {
                "alpha1 question": {"d1-0": 2.0, "d1-1": 0.0},
                "alpha2 question": {"d2-0": 0.0},
            }
            assert answer["queries"]["alpha2 question"] == "alpha2 question"
            assert (answer["answered"], answer["missing"]) == (1, 99)
            assert client.get(url).json()["answered"] == 2  # everybody's, where nobody needs a key
            suggested = client.get(f"{url}/next", params={"client_id": "ann", "limit": 3}).json()
            assert suggested["against"] == "v0 by meaning alone"
            assert 0 < len(suggested["queries"]) <= 3
            refused = client.get(f"{url}/next", params={"version": "v0"})
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        with pytest.raises(InvalidRequest):
            queries_to_judge(topics, version="v0")
        changed = _opinion("alpha1 question", "d1-0", "thumbs_down", "ann", "2026-02-01T00:00:00Z")
        local = LocalEngine(engine)
        local.feedback("topics", [changed])
        assert own_judgements(topics, "client:ann").judgements["alpha1 question"]["d1-0"] == 0.0
        assert local.own_judgements("topics", client_id="bob").answered == 1
        assert local.queries_to_judge("topics", limit=2).queries
        with pytest.raises(InvalidRequest):
            local.queries_to_judge("topics", version="v0")


def test_queries_on_which_versions_differ_come_first(tmp_path: Path) -> None:
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        topics = engine.create("words")
        draw = np.random.default_rng(0)
        texts = [" ".join(draw.choice([f"word{n}" for n in range(40)], size=12)) for _ in range(30)]
        topics.ingest([Document(f"d{n}", text) for n, text in enumerate(texts)])
        head = topics.head("v0")
        version = topics.add_model(head, {}, parent="v0")
        assert queries_to_judge(topics).queries == []  # they answer alike
        deaf = topics.add_model(_by_meaning_alone(topics), {}, parent="v0")
        suggested = queries_to_judge(topics, limit=5)
        assert (suggested.model, suggested.against) == ("v0", deaf)
        differences = [each.difference for each in suggested.queries]
        assert differences == sorted(differences, reverse=True)
        assert all(0 < each <= 1 for each in differences)
        judged = [suggested.queries[0].query]
        again = queries_to_judge(topics, judged=judged, limit=50)
        assert judged[0] not in [each.query for each in again.queries]
        assert version != deaf


def test_of_many_queries_the_latest_unjudged_ones_are_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "MOST_ASKED", 2)
    monkeypatch.setattr(judging, "difference_of", lambda *_: 1.0)
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        topics = topics_in(engine)
        asked = [("z", "old", 1.0), ("y", "new", 8.0), ("x", "again", 2.0), ("w", "Judged", 9.0)]
        asked += [("v", "AGAIN ", 7.0), ("u", "older", 0.0), ("t", "NEW", 7.5)]
        for id, text, shown_s in asked:
            click = Event(f"e{id}", id, "k", "", "click", "d1-0", 1, shown_s, shown_s)
            topics.feedback.record([Impression(id, text, shown_s, ids=("d1-0",))], [click])
        suggested = queries_to_judge(topics, judged=["judged"], limit=100).queries
    assert [each.query for each in suggested if each.logged] == ["AGAIN ", "new"]  # each as it was asked last


def test_opinions_are_of_a_text_and_of_one_person(collection: Collection) -> None:
    """Files that name their queries alike are about different ones; the later word counts."""
    for text, document, grade in (("apple", "d0", 3.0), ("bread", "d1", 2.0), ("apple", "d0", 1.0)):
        written = write_opinions(collection, {"q": text}, {"q": {document: grade}}, "ann")
    assert (written.new, written.changed, written.unchanged) == (0, 1, 0)
    said = {"apple": {"d0": 1.0}, "bread": {"d1": 2.0}}
    assert own_judgements(collection, "client:ann").judgements == said
    assert own_judgements(collection, "ann").judgements == {}
    assert len(list(collection.feedback.pages())) == 2


def test_of_two_opinions_at_one_time_the_second_counts(collection: Collection) -> None:
    page = Impression("p", "apple", 1.0)
    events = [
        Event(f"e{n}", "p", "k", "", of, "d0", None, 1.0, 1.0) for n, of in enumerate(("answer", "partly"))
    ]
    collection.feedback.record([page], events)
    assert own_judgements(collection).judgements == {"apple": {"d0": 1.0}}


def test_the_live_version_is_compared_with_another_one(collection: Collection) -> None:
    """Though it is the latest."""
    first, latest = (collection.add_model(_by_meaning_alone(collection), {}) for _ in range(2))
    collection.promote(latest)
    assert queries_to_judge(collection).against == first


def _by_meaning_alone(topics: Collection) -> Head:
    head = deepcopy(topics.head("v0"))
    head.keyword_weight.data.fill_(0.0)
    return head


def test_a_grade_above_zero_stays_above_zero() -> None:
    grades = {-1: 0, 0: 0, 0.01: 1, 0.3: 1, 1.4: 1, 1.6: 2, 2.6: 3, 9: 3}
    assert {grade: judging.nearest_grade(grade) for grade in grades} == grades


def test_difference_by_hand() -> None:
    assert difference_of(["a", "b"], ["a", "b"]) == 0
    assert difference_of(["a", "b"], ["c", "d"]) == 1
    assert difference_of([], []) == 0
    assert difference_of(["a", "b"], []) == difference_of([], ["a", "b"]) == 1
    assert 0 < difference_of(["a", "b"], ["b", "a"]) < 1

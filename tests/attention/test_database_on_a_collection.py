"""A collection as a database: exact, approximate and prefix match of a field, at every door."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from support.attention.three_doors import DOORS, Doors, in_three_ways
from support.fakes import HashingEncoder

import dsearch
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import DocumentNotFound, InvalidRequest
from dsearch.service import create_app
from dsearch.types import Document

PEOPLE = {
    "Zhang": "Aston",
    "Lipton": "Zachary",
    "Li": "Mu",
    "Smola": "Alex",
    "Hu": "Rachel",
    "Werness": "Brent",
}
SPELLINGS = [
    "M\u00fcller",
    "Mu\u0308ller",
    "Muller",
    "muller",
    "a - b",
    "a-b",
]  # the second is the first in NFD


def database() -> list[Document]:
    names = [
        Document(
            f"n{at}",
            f"{last} is a name",
            title=last,
            metadata={"first": first, "also": [first.upper(), last]},
        )
        for at, (last, first) in enumerate(PEOPLE.items())
    ]
    return names + [
        Document(f"s{at}", text, metadata={"year": 2000 + at}) for at, text in enumerate(SPELLINGS)
    ]


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Built and fresh documents."""
    home = tmp_path_factory.mktemp("people") / "home"
    with SearchEngine(home, encoder=HashingEncoder) as engine:
        collection = engine.create("people")
        collection.ingest(database()[:8])
        collection.upsert(database()[8:])
        yield collection


@pytest.fixture(scope="module")
def client(people: Collection) -> Iterator[TestClient]:
    with SearchEngine(people.store.path.parent, encoder=HashingEncoder, readonly=True) as engine:
        app = create_app(engine, query_timeout_s=60)
        with TestClient(app, base_url="http://127.0.0.1") as connected:
            yield connected


@pytest.fixture
def doors(
    people: Collection,
    client: TestClient,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Doors:
    return in_three_ways(people, client, capsys, monkeypatch)


def ids(answer: dict[str, Any]) -> list[set[str]]:
    return [{*result["ids"]} for result in answer["results"]]


@pytest.mark.parametrize("door", DOORS)
def test_exact_match_is_equality_of_the_text_in_normal_form(doors: Doors, door: str) -> None:
    options: dict[str, Any] = {"score": "exact_match", "match_field": "text"}
    answer = doors.attend(door, ["M\u00fcller", "Muller", "a - b", "Mull"], **options)
    assert ids(answer) == [{"s0", "s1"}, {"s2"}, {"s4"}, set()]
    assert answer["results"][0]["weights"] == [0.5, 0.5]
    folded = doors.attend(door, ["MULLER"], ignore_case=True, **options)
    assert ids(folded) == [{"s2", "s3"}]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("field", "query", "found"),
    [
        ("id", "n3", "n3"),
        ("title", "Li", "n2"),
        ("first", "Mu", "n2"),
        ("also", "MU", "n2"),
        ("year", "2003", "s3"),
    ],
)
def test_every_field_can_be_the_key(doors: Doors, door: str, field: str, query: str, found: str) -> None:
    answer = doors.attend(door, [query], score="exact_match", match_field=field)
    assert ids(answer) == [{found}]
    assert answer["results"][0]["covered_mass"] == 1


@pytest.mark.parametrize("door", DOORS)
def test_approximate_match_gives_liptons_value_without_li(doors: Doors, door: str) -> None:
    options: dict[str, Any] = {"field": "first", "score": "fuzzy", "match_field": "title", "pooling": "hard"}
    answer = doors.predict(door, ["Li"], **options)
    assert answer["results"][0]["labels"][0] == {"label": "Mu", "share": 1.0}
    if door == "python":
        rest = {"first": {"ne": "Mu"}}
        answer = doors.predict(door, ["Li"], filter=rest, **options)
        assert answer["results"][0]["labels"][0] == {"label": "Zachary", "share": 1.0}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("over", ["candidates", "all"])
def test_fuzzy_weights_are_similarities_over_their_sum(doors: Doors, door: str, over: str) -> None:
    answer = doors.attend(door, ["Li"], score="fuzzy", match_field="title", over=over)
    similarity = {
        f"n{at}": SequenceMatcher(None, "Li", last, autojunk=False).ratio() for at, last in enumerate(PEOPLE)
    }
    total = sum(similarity.values())
    result = answer["results"][0]
    assert ids(answer) == [{id for id, share in similarity.items() if share}]
    for id, weight in zip(result["ids"], result["weights"], strict=True):
        assert weight == pytest.approx(similarity[id] / total, abs=1e-6)


@pytest.mark.parametrize("door", DOORS)
def test_prefix_prefers_the_field_that_it_is_most_of(doors: Doors, door: str) -> None:
    answer = doors.attend(door, ["Li", "li"], score="prefix", match_field="title")
    assert answer["results"][0]["ids"] == ["n2", "n1"]  # Li, Lipton
    assert answer["results"][0]["weights"] == pytest.approx([3 / 4, 1 / 4])  # 2/2 and 2/6
    assert answer["results"][1]["ids"] == []


def test_the_answer_changes_with_the_contents(engine: SearchEngine) -> None:
    collection = engine.create("names")
    collection.ingest(database()[:6])
    options: dict[str, Any] = {"field": "first", "match_field": "title", "pooling": "hard"}

    def value(score: str) -> tuple[Any, float] | None:
        labels = collection.predict(["Li"], score=score, **options).predictions[0].labels
        return next(iter(labels.items())) if labels else None

    assert value("exact_match") == value("fuzzy") == ("Mu", 1.0)
    collection.delete(["n2"])
    assert value("exact_match") is None
    assert value("fuzzy") == ("Zachary", 1.0)
    collection.upsert([Document("n9", "new", title="Li", metadata={"first": "Fei-Fei"})])
    assert value("exact_match") == value("fuzzy") == ("Fei-Fei", 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "exact_match"}, "give match_field: id, title, text"),
        ({"score": "fuzzy"}, "score='fuzzy' without a field; give match_field"),
        ({"score": "dot", "match_field": "title"}, "only exact_match, fuzzy, prefix compare a field"),
        ({"ignore_case": True}, "ignore_case without match_field"),
        ({"score": "prefix", "match_field": "a..b"}, "field"),
    ],
)
def test_errors_say_what_to_give(people: Collection, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        people.attend(["Li"], **options)


# ---- a recommender: the target item over a user's history


@pytest.mark.parametrize("door", DOORS)
def test_an_item_attends_to_a_history(doors: Doors, door: str) -> None:
    """softmax over the documents among, without the excluded ones, at the embedding of the item."""
    history = ["n0", "n1", "n4", "s2", "s4"]
    answer = doors.attend(door, [], ids=["n3"], among=history, exclude=["s4"], temperature=0.1)
    encoder = HashingEncoder()
    texts = {one.id: one.content for one in database()}
    target = encoder.encode_documents([texts["n3"]])[0].astype(float)
    keys = encoder.encode_documents([texts[id] for id in history[:4]]).astype(float)
    weights = np.exp(keys @ target / 0.1)
    weights /= weights.sum()
    result = answer["results"][0]
    assert {*result["ids"]} == {*history[:4]}
    assert result["context"] == pytest.approx(weights @ keys, abs=1e-5)
    for id, weight in zip(result["ids"], result["weights"], strict=True):
        assert weight == pytest.approx(weights[history.index(id)], abs=1e-6)
    predicted = doors.predict(door, [], field="first", ids=["n3"], exclude=["n3"], mode="dense")
    assert "n3" not in {one["id"] for one in predicted["results"][0]["evidence"]}


def test_an_unknown_item_is_refused(people: Collection) -> None:
    with pytest.raises(DocumentNotFound, match="no document 'nobody' with an embedding"):
        people.states_of(["n1", "nobody"])


def test_an_address_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest, match=r"is an address, not a folder; use dsearch\.Client"):
        dsearch.open("http://127.0.0.1:8080")
    for call in (dsearch.SearchEngine, partial(dsearch.open_layer, name="people")):
        with pytest.raises(InvalidRequest, match=r"'http://127\.0\.0\.1:8080' is an address, not a folder"):
            call("http://127.0.0.1:8080")
    assert not [*tmp_path.iterdir()]

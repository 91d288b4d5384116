"""A collection as a database: exact, approximate and prefix match of a field, at every door."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

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

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from dsearch.errors import InvalidDocument, InvalidRequest
from dsearch.store import CheckedDocuments, DocumentCounts, validate, validate_name
from dsearch.types import Document

GOOD = Document("good", "text")


def nested(depth: int) -> dict:
    value: dict = {}
    for _ in range(depth):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Document("", "x"), "document 1 (id '') has an empty id"),
        (Document("é" * 257, "x"), "has 514 bytes of id; at most 512"),
        (Document("a", " \n", title="\t"), "document 1 (id 'a') has neither title nor text"),
        (
            Document("a", "x" * (2**20 + 1)),
            "document 1 (id 'a') has 1048577 bytes of text; at most 1048576",
        ),
        (Document("a", "x", title="é" * 40_000), "has 80000 bytes of title; at most 65536"),
        (Document("a", "x\ud800"), "has a lone surrogate at character 1 of its text"),
        (Document("\udfff", "x"), "has a lone surrogate at character 0 of its id"),
        (Document("a", "x", title="\ud800"), "of its title"),
        (Document("a", "x", metadata={"k": "\ud800"}), "of its metadata"),
        (Document("a", "x", metadata={"k": [1.0, math.nan]}), "has nan at metadata.k[1]"),
        (Document("a", "x", metadata={"k": {"l": -math.inf}}), "has -inf at metadata.k.l"),
        (Document("a", "x", metadata={"k": (1, 2)}), "has a tuple at metadata.k; use null, booleans"),
        (Document("a", "x", metadata={"k": {1}}), "has a set at metadata.k"),
        (Document("a", "x", metadata={1: "k"}), "has the key 1 at metadata; JSON keys are strings"),
        (Document("a", "x", metadata={"k": 2**63}), "has an integer of more than 64 bits at metadata.k"),
        (Document("a", "x", metadata=nested(32)), "nests deeper than 32 levels"),
        (Document("a", "x", metadata=nested(40)), "nests deeper than 32 levels"),
        (Document("a", "x", metadata={"k": "x" * 2**20}), "has 1048584 bytes of metadata"),
        (Document("a", "x", metadata=["k"]), "has metadata of type list"),
        (Document("a", "x", value=math.nan), "has nan in its value"),
        (Document("a", "x", value=[1.0, math.inf]), "has inf in its value"),
        (Document("a", "x", value=[]), "has a value of 0 numbers"),
        (Document("a", "x", value=True), "has a bool in its value"),
        (Document("a", "x", value="3"), "has a str in its value"),
        (Document("a", "x", value=10**400), "has inf in its value"),
        (Document("a", b"x"), "has a bytes as its text"),
        (Document(7, "x"), "has a int as its id"),
        (Document("good", "other"), "document 1 (id 'good') is also document 0 of this batch"),
    ],
)
def test_one_bad_document_refuses_the_whole_batch_and_says_which(store, bad, message):
    with pytest.raises(InvalidDocument, match=re.escape(message)):
        store.upsert([GOOD, bad])
    assert store.count() == DocumentCounts(0, 0, 0)
    assert store.sequence == 0


def test_the_limits_themselves_are_allowed(store):
    limits = Document("é" * 256, "x" * 2**20, title="t" * 2**16, metadata=nested(31), value=[0.0] * 65_536)
    store.upsert([limits, Document("t", "", title="title alone"), Document("i", "x", value=3)])
    assert store.get("é" * 256) == limits
    assert store.get("t").text == ""
    assert isinstance(store.get("i").value, float)


def test_numpy_numbers_are_refused_by_name(store):
    with pytest.raises(InvalidDocument, match=r"has a float32 at metadata\.k"):
        store.upsert([Document("a", "x", metadata={"k": np.float32(1)})])


@pytest.mark.parametrize("name", ["a", "0", "my-papers_2", "a" * 64])
def test_names_that_may_be_folders(name):
    assert validate_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "A", "a" * 65, ".", "..", "../x", "a/b", "a\\b", "-a", "_a", "a.b", "a\n", "ä", "a b", "a\0", "٣"],
)
def test_names_that_may_not(name):
    with pytest.raises(InvalidRequest, match="use 1 to 64 of the characters"):
        validate_name(name)


@pytest.fixture
def checks(monkeypatch) -> list[str]:
    """The ids of the documents that are checked, check by check."""
    seen: list[str] = []
    check = validate._prepare
    monkeypatch.setattr(validate, "_prepare", lambda document: seen.append(document.id) or check(document))
    return seen


def test_checked_documents_are_not_checked_again(store, checks):
    batch = CheckedDocuments()
    for id in "ab":
        batch.add(Document(id, "text", metadata={"n": 1}, value=2))
    receipt = store.upsert(batch)
    assert (receipt.inserted, receipt.rows, checks) == (2, (1, 2), ["a", "b"])
    assert [store.get(id) for id in "ab"] == list(batch)
    assert store.upsert(list(batch)).unchanged == 2
    assert checks == ["a", "b", "a", "b"]
    assert store.upsert(CheckedDocuments()).inserted == 0


def test_a_bad_document_is_told_when_it_is_added_and_costs_only_itself(store):
    batch = CheckedDocuments()
    batch.add(GOOD)
    with pytest.raises(InvalidDocument, match=r"^the document \(id 'a'\) has nan at metadata\.k"):
        batch.add(Document("a", "x", metadata={"k": math.nan}))
    with pytest.raises(InvalidDocument, match=r"^the document \(id 'good'\) stands in this batch twice"):
        batch.add(Document("good", "other"))
    with pytest.raises(InvalidDocument, match=r"has a list as its id"):
        batch.add(Document(["a"], "x"))
    assert list(batch) == [GOOD]
    assert (store.upsert(batch).inserted, store.get("good")) == (1, GOOD)


@pytest.mark.parametrize(("places", "left"), [((), "abc"), ((0,), "bc"), ((1,), "ac"), ((0, 2), "b")])
def test_those_at_some_places_are_left_out(store, checks, places, left):
    batch = CheckedDocuments()
    for id in "abc":
        batch.add(Document(id, f"text of {id}"))
    rest = batch.without(places)
    assert store.upsert(rest).inserted == len(rest) == len(left)
    assert [document.id for document in store.list()] == [document.id for document in rest] == list(left)
    assert checks == ["a", "b", "c"]


def test_what_is_stored_is_what_was_checked(store):
    batch, metadata = CheckedDocuments(), {"k": 1}
    batch.add(Document("a", "x", metadata=metadata))
    metadata["k"] = math.nan
    store.upsert(batch)
    assert store.get("a").metadata == {"k": 1}
    assert store.verify().ok

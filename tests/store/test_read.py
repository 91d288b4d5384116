"""Reading rows, ids and near ids of documents.db; blocks of rows are as one."""

from __future__ import annotations

import gc
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dsearch.errors import CorruptData, DocumentNotFound, InvalidRequest, NotFound
from dsearch.store import Store, reader
from dsearch.types import Document

IDS = ["notes/a_b", "notes/axb", "longer/notes/a_b", "50%off", "500off", "a!b1", "ab", "x/readme.md"]

Embed = Callable[..., np.ndarray]


@pytest.fixture
def filled(store: Store) -> Store:
    store.upsert([Document(id, f"text of {id}", f"title {n}") for n, id in enumerate(IDS)])
    return store


def meant(store: Store, asked: str) -> str | None:
    with pytest.raises(DocumentNotFound) as raised:
        store.get(asked)
    _, _, near = str(raised.value).partition("; did you mean ")
    return near.removesuffix("?").strip("'") or None


NEAR: list[tuple[str, str | None]] = [
    ("other/a_b", "notes/a_b"),  # the shortest with that last part, and _ is no wild card
    ("elsewhere/a_c", None),
    ("A_B", "notes/a_b"),  # case is not told apart
    ("40%off/0%off/", "50%off"),
    ("5%ff", None),
    ("a!b", "a!b1"),
    ("readme.md", "x/readme.md"),
    ("a", None),  # too short to be meant
    ("x/ab/ab", None),
    ("off", "50%off"),  # of equal length the first
    ("f" * 201, None),
    ("", None),
]


@pytest.mark.parametrize(("asked", "near"), NEAR)
def test_the_id_that_was_meant_is_named(filled: Store, asked: str, near: str | None) -> None:
    assert meant(filled, asked) == near


def test_a_deleted_document_is_not_meant_and_few_are_looked_at(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert meant(filled, "docs/readme.md") == "x/readme.md"
    monkeypatch.setattr(reader, "_NEAR", 7)  # in the order of ids, of which it is the last
    assert meant(filled, "docs/readme.md") is None
    monkeypatch.setattr(reader, "_NEAR", 8)
    assert meant(filled, "docs/readme.md") == "x/readme.md"
    filled.delete(["x/readme.md"])
    assert meant(filled, "docs/readme.md") is None


@pytest.mark.parametrize("chunk", [1, 3, 2048])
def test_rows_are_read_in_blocks_in_any_order(
    filled: Store, embed: Embed, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    vectors = embed(*IDS)
    filled.set_embeddings(np.arange(1, 8), vectors[:7])
    monkeypatch.setattr(reader, "_CHUNK", chunk)
    monkeypatch.setattr(reader, "_PLACES", chunk)
    for rows in ([1, 2, 3, 4, 5, 6, 7], [7, 1, 1, 5], [4], []):
        at = np.array(rows, np.int64) - 1
        assert np.array_equal(filled.embeddings(rows), vectors[at])
        assert filled.ids(rows) == [IDS[place] for place in at]
        assert [one.text for one in filled.documents(rows)] == [f"text of {IDS[place]}" for place in at]
        assert filled.contents(rows) == [f"title {place} text of {IDS[place]}" for place in at]
    with pytest.raises(NotFound, match="row 8 has no stored embedding; ask for rows of a snapshot"):
        filled.embeddings([1, 8, 2])
    with pytest.raises(NotFound, match="row 9 is not in this collection"):
        filled.ids([1, 9])
    with pytest.raises(NotFound, match="row 9 is not in this collection"):
        filled.documents([9])


def test_what_waits_for_an_embedding_is_listed_with_its_length(filled: Store, embed: Embed) -> None:
    filled.set_embeddings(np.array([2, 1]), embed(*IDS[:2]))
    filled.delete(["500off"])
    pending = filled.pending()
    assert pending.rows.tolist() == [3, 4, 6, 7, 8]
    lengths = [len(f"title {row - 1} text of {IDS[row - 1]}") for row in pending.rows]
    assert pending.lengths.tolist() == lengths


def test_documents_with_other_words_or_without_an_embedding_need_encoding(
    filled: Store, embed: Embed
) -> None:
    filled.set_embeddings(np.arange(1, 4), embed(*IDS[:3]))
    given = [
        Document(IDS[0], f"text of {IDS[0]}", "title 0", {"other": "metadata"}),
        Document(IDS[1], "other words", "title 1"),
        Document(IDS[2], f"text of {IDS[2]}", "another title"),
        Document(IDS[3], f"text of {IDS[3]}", "title 3"),  # has none yet
        Document("new", "text"),
    ]
    assert filled.needs_encoding(given) == [1, 2, 3, 4]


def test_pages_begin_behind_an_id_and_are_by_code_point(filled: Store) -> None:
    whole = sorted(IDS)
    assert [one.id for one in filled.list(limit=100)] == whole
    assert [one.id for one in filled.list(limit=3)] == whole[:3]
    assert [one.id for one in filled.list(after=whole[2], limit=2)] == whole[3:5]
    assert filled.list(after=whole[-1]) == []


def test_an_id_that_is_no_text_is_of_no_document(filled: Store) -> None:
    assert filled.rows_of(["ab", "\ud800", "nobody"]) == {"ab": 7}
    with pytest.raises(DocumentNotFound):
        filled.get("\ud800")


@pytest.mark.parametrize(("call", "most"), [("list", 10_000), ("facets", 1000)])
def test_the_bounds_of_a_limit_are_inclusive(filled: Store, call: str, most: int) -> None:
    ask = getattr(filled, call)
    first = ("year",) if call == "facets" else ()
    for limit in (1, most):
        ask(*first, limit=limit)
    for limit in (0, most + 1):
        with pytest.raises(InvalidRequest, match=f"limit={limit}; use 1 to {most}"):
            ask(*first, limit=limit)


@pytest.mark.parametrize("value", ["CAST(id AS BLOB)", "NULL", "7"])
def test_an_id_that_damage_made_no_text_is_damage(filled: Store, value: str) -> None:
    with closing(sqlite3.connect(filled.path / "documents.db")) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE name = 'document'"
        )
        connection.commit()
    with closing(sqlite3.connect(filled.path / "documents.db")) as connection:
        connection.execute(f"UPDATE document SET id = {value} WHERE row = 3")
        connection.commit()
    with pytest.raises(CorruptData, match=r"row 3 .*: its text or metadata are not what was written"):
        filled.documents([2, 3])


@pytest.mark.parametrize("check", [True, False])
def test_an_embedding_that_damage_made_a_text_is_damage(filled: Store, embed: Embed, check: bool) -> None:
    filled.set_embeddings(np.array([1, 2]), embed(*IDS[:2]))
    with closing(sqlite3.connect(filled.path / "documents.db")) as connection:
        connection.execute("UPDATE embedding SET vector = ? WHERE row = 2", ("x" * 32,))
        connection.commit()
    with pytest.raises(CorruptData, match="row 2: its embedding is not what was written"):
        filled.embeddings([1, 2], check=check)


def test_damage_leaves_no_cursor_open(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = filled.rows_of(IDS)
    with sqlite3.connect(filled.path / "documents.db") as connection:
        connection.execute("UPDATE document SET text = 'other' WHERE id = ?", (IDS[0],))
    connection.close()
    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    with pytest.raises(CorruptData) as raised:
        filled.documents([*rows.values()])
    filled.close()
    del raised  # with the frames in which a cursor would be
    gc.collect()
    assert complaints == []


def test_what_a_collection_says_of_itself_is_a_copy(folder: Path) -> None:
    cut = {"tokens": 256}
    with Store.create(folder, name="papers", encoder={"name": "test"}, dimension=8, passages=cut) as store:
        for given in (store.encoder, store.cutting or {}):
            given["name"] = "another"
        assert (store.encoder, store.cutting) == ({"name": "test"}, cut)


@pytest.mark.parametrize("call", ["list", "count", "facets", "export"])
def test_an_empty_filter_is_no_filter(filled: Store, call: str) -> None:
    ask = partial(getattr(filled, call), *(("year",) if call == "facets" else ()))
    answers = [ask(filter=filter) for filter in ({}, None)]
    one, other = (answer if call == "count" else [*answer] for answer in answers)
    assert one == other

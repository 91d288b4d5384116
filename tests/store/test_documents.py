from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dsearch.errors import (
    Conflict,
    CorruptData,
    DimensionMismatch,
    DocumentNotFound,
    InvalidRequest,
    NotFound,
)
from dsearch.store import DocumentCounts, Store
from dsearch.store.reader import ADDED, REMOVED
from dsearch.types import Document

ONE = Document("a", "hello", title="One", metadata={"year": 1999, "tags": ["x", None, True]}, value=2.5)
TWO = Document("b", "world", value=[1.0, 2.0])


def test_a_document_comes_back_as_it_was_given(store):
    receipt = store.upsert([ONE, TWO])
    assert (receipt.sequence, receipt.inserted, receipt.rows) == (1, 2, (1, 2))
    assert store.get("a") == ONE
    assert store.documents([2, 1, 2]) == [TWO, ONE, TWO]
    assert store.ids([2, 1]) == ["b", "a"]
    assert store.rows_of(["b", "nobody", "a"]) == {"b": 2, "a": 1}
    assert store.contents([1, 2]) == ["One hello", "world"]


def test_unchanged_documents_are_not_an_operation(store):
    store.upsert([ONE, TWO])
    again = store.upsert([TWO, ONE])
    assert (again.sequence, again.unchanged, again.inserted, again.updated) == (1, 2, 0, 0)
    assert again.rows == (2, 1)
    assert store.delete(["nobody"]).sequence == 1
    assert store.upsert([]).sequence == 1
    assert store.sequence == 1


@pytest.mark.parametrize(
    "changed",
    [
        Document("a", "hullo", "One", ONE.metadata, 2.5),
        Document("a", "hello", "Two", ONE.metadata, 2.5),
        Document("a", "hello", "One", {"year": 2000}, 2.5),
        Document("a", "hello", "One", ONE.metadata, 3.5),
        Document("a", "hello", "One", ONE.metadata, None),
        Document("a", "hello", "One", {**ONE.metadata, "year": 1999.0}, 2.5),
    ],
)
def test_every_field_counts_as_a_change_and_gets_a_new_row(store, changed):
    store.upsert([ONE, TWO])
    receipt = store.upsert([changed, TWO])
    assert (receipt.sequence, receipt.updated, receipt.unchanged, receipt.rows) == (2, 1, 1, (3, 2))
    assert store.get("a") == changed
    assert store.documents([1]) == [ONE]  # an older snapshot may still show it
    assert store.count() == DocumentCounts(documents=2, pending=2, tombstones=1)


def test_metadata_alone_keeps_the_embedding_and_text_does_not(store, embed):
    store.upsert([ONE, TWO], embed("One hello", "world"))
    relabelled = Document("a", "hello", title="One", metadata={"year": 2000})
    rewritten = Document("b", "worlds")
    assert store.needs_encoding([relabelled, rewritten, Document("c", "new")]) == [1, 2]
    rows = store.upsert([relabelled, rewritten]).rows
    assert store.pending().rows.tolist() == [rows[1]]
    np.testing.assert_array_equal(store.embeddings([rows[0]]), embed("One hello"))


def test_words_that_move_between_title_and_text_need_no_encoding(store, embed):
    store.upsert([Document("a", "b c", title="a")], embed("a b c"))
    assert store.needs_encoding([Document("a", "c", title="a b")]) == []


def test_a_stored_embedding_wins_over_a_given_one(store, embed):
    store.upsert([ONE], embed("One hello"))
    assert store.upsert([ONE], embed("something else")).sequence == 1
    store.upsert([Document("a", "hello", title="One")], embed("something else"))
    np.testing.assert_array_equal(store.embeddings([2]), embed("One hello"))


def test_an_embedding_given_for_a_pending_document_is_taken(store, embed):
    store.upsert([ONE])
    receipt = store.upsert([ONE], embed("One hello"))
    assert (receipt.sequence, receipt.unchanged) == (2, 1)
    assert store.count().pending == 0
    assert store.rows().tolist() == [1]


def test_embeddings_may_be_given_for_some_positions(store, embed):
    store.upsert([ONE, TWO], embed("world"), positions=[1])
    assert store.rows().tolist() == [2]
    assert store.pending().rows.tolist() == [1]
    with pytest.raises(InvalidRequest, match=r"positions \[2\]; use 0 to 1"):
        store.upsert([ONE, TWO], embed("world"), positions=[2])


def test_text_first_embeddings_in_batches_and_an_interrupted_run_goes_on(folder, embed):
    documents = [Document(str(number), "word " * (number + 1)) for number in range(10)]
    with Store.create(folder, name="papers", encoder={}, dimension=8) as store:
        store.upsert(documents)
        waiting = store.pending()
        assert waiting.rows.tolist() == list(range(1, 11))
        assert waiting.lengths.tolist() == [len(document.content) for document in documents]
        longest = waiting.rows[np.argsort(-waiting.lengths)][:4]
        assert store.set_embeddings(longest, embed(*store.contents(longest))) == 2
    with Store.open(folder) as store:
        rest = store.pending().rows
        assert rest.tolist() == list(range(1, 7))
        store.set_embeddings(rest, embed(*store.contents(rest)))
        assert store.count() == DocumentCounts(10, 0, 0)
        expected = embed(*[document.content for document in documents])
        np.testing.assert_array_equal(store.embeddings(store.rows()), expected)
        assert store.verify().ok


def test_embeddings_come_in_the_order_asked_for_repeats_included(store, embed):
    words = [f"w{number}" for number in range(5000)]  # more than one chunk
    store.upsert([Document(word, word) for word in words], embed(*words))
    order = np.random.default_rng(0).integers(1, 5001, size=6000)
    np.testing.assert_array_equal(store.embeddings(order), embed(*words)[order - 1])
    np.testing.assert_array_equal(store.embeddings(order, check=False), embed(*words)[order - 1])
    assert store.embeddings([]).shape == (0, 8)
    assert store.embeddings(store.rows()).dtype == np.float32


def test_rows_that_never_were_are_named(store, embed):
    store.upsert([ONE])
    with pytest.raises(NotFound, match="row 1 has no stored embedding"):
        store.embeddings([1])
    with pytest.raises(NotFound, match="row 7 is not in this collection"):
        store.documents([1, 7])
    with pytest.raises(NotFound, match="row 7 is not in this collection"):
        store.ids([7])
    with pytest.raises(NotFound, match="row 9 was never given out; rows are 1 to 1"):
        store.set_embeddings([1, 9], embed("x", "y"))
    with pytest.raises(NotFound, match="row 2 was never given out; rows are 1 to 1"):
        store.set_embeddings([2], embed("x"))
    assert store.count().pending == 1  # all or nothing


def test_an_embedding_for_a_row_superseded_meanwhile_is_passed_over(store, embed):
    store.upsert([ONE, TWO])
    store.delete(["a"])
    store.set_embeddings([1, 2], embed("One hello", "world"))
    assert store.rows().tolist() == [2]
    assert store.set_embeddings([2], embed("other")) == store.sequence == 3
    np.testing.assert_array_equal(store.embeddings([2]), embed("world"))


@pytest.mark.parametrize(
    ("embeddings", "error", "message"),
    [
        (np.zeros((2, 7)), DimensionMismatch, r"shape \[2, 7\].*stores 8 numbers"),
        (np.zeros(8), DimensionMismatch, r"shape \[8\].*so give \[2, 8\]"),
        (np.zeros((3, 8)), InvalidRequest, "3 embeddings for 2 documents"),
        (np.full((2, 8), np.nan), InvalidRequest, "embedding 0 has NaN"),
        (np.array([[0.0] * 8, [1e39] + [0.0] * 7]), InvalidRequest, "embedding 1 has NaN or infinite"),
        (np.full((2, 8), "x"), InvalidRequest, "give float32"),
    ],
)
def test_bad_embeddings_are_refused_and_nothing_is_written(store, embeddings, error, message):
    with pytest.raises(error, match=message):
        store.upsert([ONE, TWO], embeddings)
    assert store.count() == DocumentCounts(0, 0, 0)
    store.upsert([ONE, TWO])
    with pytest.raises(error, match=message):
        store.set_embeddings([1, 2], embeddings)
    assert store.count().pending == 2


def test_delete_reports_what_was_there(store, embed):
    store.upsert([ONE, TWO], embed("One hello", "world"))
    receipt = store.delete(["a", "nobody", "a"])
    assert (receipt.sequence, receipt.deleted, receipt.missing, receipt.rows) == (2, 1, 1, (1,))
    with pytest.raises(DocumentNotFound, match="no document 'a' in collection 'papers'"):
        store.get("a")
    assert store.rows().tolist() == [2]
    np.testing.assert_array_equal(store.embeddings([1]), embed("One hello"))
    assert store.upsert([ONE]).rows == (3,)  # a row is never used again
    assert store.needs_encoding([ONE]) == [0]


def test_bytes_that_are_no_text_are_the_id_of_no_document(store, embed):
    store.upsert([ONE], embed("One hello"))
    receipt = store.delete(["caf\udce9", "a"])
    assert (receipt.deleted, receipt.missing) == (1, 1)
    assert store.rows_of(["caf\udce9"]) == {}


def test_rows_are_not_reused_after_the_last_one_was_deleted_and_the_store_reopened(folder):
    with Store.create(folder, name="papers", encoder={}, dimension=8) as store:
        store.upsert([ONE, TWO])
        store.delete(["b"])
    with Store.open(folder) as store:
        assert store.upsert([TWO]).rows == (3,)


def test_changes_since_tell_a_reader_what_to_add_and_to_drop(store, embed):
    store.upsert([ONE, TWO], embed("One hello", "world"))  # 1
    store.upsert([Document("c", "c")])  # 2: pending, so not searchable
    then = store.snapshot()
    store.set_embeddings([3], embed("c"))  # 3
    store.upsert([Document("a", "other")], embed("other"))  # 4: row 4 for row 1
    store.upsert([Document("d", "d")], embed("d"))  # 5
    store.delete(["d"])  # 6: came and went
    changes = store.changes_since(then.sequence)
    assert (changes.sequence, changes.added.tolist(), changes.removed.tolist()) == (6, [3, 4], [1])
    now = store.snapshot()
    after = np.union1d(np.setdiff1d(then.rows, changes.removed), changes.added)
    np.testing.assert_array_equal(now.rows, after)
    assert store.changes_since(now.sequence).added.size == 0


def test_what_the_operation_of_a_snapshot_wrote_is_removed_by_a_later_deletion(store, embed):
    store.upsert([ONE, TWO], embed("One hello", "world"))
    then = store.snapshot()
    assert then.rows.tolist() == [1, 2]
    store.delete(["a"])
    assert store.changes_since(then.sequence).removed.tolist() == [1]


def test_other_embeddings_replace_where_that_is_asked(store, embed):
    store.upsert([ONE, TWO], embed("One hello"), positions=[0])
    receipt = store.upsert([ONE, TWO], embed("other", "world"), replaces=True)
    assert (receipt.updated, receipt.unchanged, receipt.rows) == (1, 1, (3, 2))  # TWO had none to replace
    np.testing.assert_array_equal(store.embeddings([3, 2]), embed("other", "world"))
    assert store.upsert([ONE, TWO], embed("other", "world"), replaces=True).sequence == receipt.sequence
    assert store.verify().ok


def test_list_walks_all_ids_in_order(store):
    ids = ["é", "b", "a", "B", "zz", "𝔸", "a b", "10", "9"]
    store.upsert([Document(id, "x") for id in ids])
    store.delete(["zz"])
    seen: list[str] = []
    after: str | None = None
    while page := store.list(after=after, limit=3):
        seen += [document.id for document in page]
        after = seen[-1]
    assert seen == sorted(set(ids) - {"zz"})
    with pytest.raises(InvalidRequest, match="limit=0; use 1 to 10000"):
        store.list(limit=0)


def test_looking_up_an_id_that_is_no_text_finds_nothing(store):
    with pytest.raises(DocumentNotFound):
        store.get("\ud800")
    assert store.rows_of(["\ud800"]) == {}


def test_a_readonly_store_reads_beside_the_writer_and_does_not_write(store, embed):
    store.upsert([ONE], embed("One hello"))
    with Store.open(store.path, readonly=True) as reader:
        assert (reader.name, reader.encoder, reader.dimension) == ("papers", {"name": "test"}, 8)
        store.upsert([TWO])
        assert reader.get("b") == TWO
        assert reader.sequence == store.sequence == 2
        with pytest.raises(Conflict, match="opened with readonly=True"):
            reader.delete(["a"])


def test_text_that_is_odd_but_text_survives(store):
    odd = Document(
        "i\x00d", "nul \x00, \r\n, 𝔸, \ufeff, ' \" \\", metadata={"k\x00": "\u2028", "": -0.0, "n": 2**63 - 1}
    )
    store.upsert([odd])
    assert store.get("i\x00d") == odd
    assert [document.id for document in store.list()] == ["i\x00d"]
    assert store.verify().ok


def test_a_damaged_text_is_not_served(store: Store, folder: Path, embed):
    import sqlite3

    store.upsert([ONE], embed("One hello"))
    other = sqlite3.connect(folder / "documents.db")
    other.execute("UPDATE document SET text = 'hellp'")
    other.execute("UPDATE embedding SET vector = zeroblob(32)")
    other.commit()
    other.close()
    with pytest.raises(CorruptData, match=r"row 1 \(id 'a'\): its text or metadata are not what was written"):
        store.get("a")
    with pytest.raises(CorruptData, match="row 1: its embedding is not what was written"):
        store.embeddings([1])
    store.delete(["a"])  # what the message says to do works
    store.upsert([ONE], embed("One hello"))
    assert store.get("a") == ONE


def test_what_changed_is_found_without_looking_at_what_did_not(store):
    """A scan would be right, too, but cost each write a look at every embedding."""
    for query, parameters in ((ADDED, (0,)), (REMOVED, (0, 0))):
        with store._readers.reading() as connection:
            plan = [line[3] for line in connection.execute(f"EXPLAIN QUERY PLAN {query}", parameters)]
        assert not [step for step in plan if step.startswith("SCAN")], plan
        assert "USING COVERING INDEX" in plan[0]


@pytest.mark.parametrize("count", [1, 15, 16, 17, 33, 300, 513])
def test_batches_of_every_size_are_written_whole_and_found_again(store, embed, count):
    documents = [Document(f"d{i}", f"text {i}", metadata={"i": i}) for i in range(count)]
    embeddings = embed(*[document.content for document in documents])
    first = store.upsert(documents, embeddings)
    assert (first.inserted, first.rows) == (count, tuple(range(1, count + 1)))
    assert list(store.documents(first.rows)) == documents
    assert np.array_equal(store.embeddings(first.rows), embeddings)
    again = store.upsert([*documents[::-1], Document("new", "x")])
    assert (again.unchanged, again.rows) == (count, (*first.rows[::-1], count + 1))
    gone = store.delete([document.id for document in documents])
    assert (gone.deleted, gone.missing, gone.rows) == (count, 0, first.rows)
    assert store.verify().ok

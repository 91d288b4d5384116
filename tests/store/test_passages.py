"""Further embeddings of long documents: stored and lost as a whole, and covered by every digest."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from support.paths import EXAMPLE

from dsearch.errors import Conflict, CorruptData, InvalidRequest
from dsearch.store import Passages, Store, passages
from dsearch.types import Document

GOLDEN = EXAMPLE / "golden"
LONG = Document("long", "one two three four five six")
SPANS = np.array([[0, 7], [4, 18], [14, 27]])


@pytest.fixture
def parts(embed) -> Passages:
    return Passages(SPANS, embed("three four", "five six"))


def same(one: Passages, other: Passages) -> bool:
    return np.array_equal(one.spans, other.spans) and np.array_equal(one.embeddings, other.embeddings)


def test_passages_come_back_with_an_upsert_and_with_a_later_embedding(store, folder, embed, parts):
    short, later = Document("short", "s"), Document("later", "l" * 30)
    receipt = store.upsert([short, LONG, later], embed("s", "one"), [0, 1], {1: parts})
    _, long_row, later_row = receipt.rows
    store.set_embeddings([later_row], embed("l"), {later_row: parts})
    store.close()
    with Store.open(folder, readonly=True) as again:
        found = again.passages(again.rows())
        assert list(found) == [long_row, later_row]
        assert all(same(one, parts) for one in found.values())
        assert again.embeddings([long_row]).tolist() == embed("one").tolist()
        assert again.verify().ok


def test_a_change_of_metadata_keeps_them_and_a_change_of_the_text_does_not(store, embed, parts):
    store.upsert([LONG], embed("one"), passages={0: parts})
    store.update_metadata("long", {"year": 1999})
    (row,) = store.rows().tolist()
    assert same(store.passages([row])[row], parts)
    store.upsert([Document("long", LONG.text, metadata={"year": 2000})])
    (row,) = store.rows().tolist()
    assert same(store.passages([row])[row], parts)
    store.upsert([Document("long", "short now")], embed("short now"))
    assert store.passages(store.rows()) == {}
    assert store.verify().ok


def test_passages_of_many_documents_are_read_in_blocks(store, embed, parts, monkeypatch):
    documents = [Document(f"d{n}", LONG.text + "!" * n) for n in range(7)]
    rows = store.upsert(documents, embed(*"abcdefg"), passages=dict.fromkeys(range(7), parts)).rows
    monkeypatch.setattr(passages, "_CHUNK", 3)
    found = store.passages(rows)
    assert tuple(found) == rows
    assert all(same(one, parts) for one in found.values())


def test_an_embedding_that_came_first_keeps_its_passages(store, embed, parts):
    (row,) = store.upsert([LONG], embed("one"), passages={0: parts}).rows
    other = Passages(SPANS[:2], embed("other"))
    store.set_embeddings([row], embed("other"), {row: other})
    assert same(store.passages([row])[row], parts)


@pytest.mark.parametrize(
    ("spans", "further"),
    [
        ([[0, 7]], 0),
        ([[0, 7], [7, 9]], 2),
        ([[0, 7], [7, 7]], 1),
        ([[5, 7], [4, 9]], 1),
        ([[0, 7], [5, 8], [4, 9]], 2),
        ([[-1, 7], [7, 9]], 1),
    ],
)
def test_passages_that_make_no_sense_are_refused(store, embed, spans, further):
    given = Passages(np.array(spans), embed(*["x"] * further))
    with pytest.raises(InvalidRequest, match="spans"):
        store.upsert([LONG], embed("one"), passages={0: given})
    assert store.count().documents == 0


def test_passages_without_the_first_embedding_are_refused(store, embed, parts):
    with pytest.raises(InvalidRequest, match=r"passages of \[1\], which have no embedding"):
        store.upsert([Document("a", "a"), LONG], embed("a"), [0], {1: parts})
    with pytest.raises(InvalidRequest, match="NaN or infinite"):
        store.upsert([LONG], embed("one"), passages={0: Passages(SPANS, parts.embeddings * np.nan)})


def test_purged_documents_take_theirs_along(store, folder, embed, parts):
    several = [LONG, Document("other", "o"), Document("longer", f"{LONG.text} {LONG.text}")]
    store.upsert(several, embed("one", "o", "longer"), passages={0: parts, 2: parts})
    store.delete(["long", "longer"])
    assert store.purge().rows == 2
    assert store.verify().ok
    store.close()
    with closing(sqlite3.connect(folder / "documents.db")) as connection:
        assert connection.execute("SELECT count(*) FROM passages").fetchone() == (0,)


@pytest.mark.parametrize("column", ["spans", "vectors"])
def test_a_changed_byte_is_noticed(store, folder, embed, parts, column):
    (row,) = store.upsert([LONG], embed("one"), passages={0: parts}).rows
    store.close()
    with closing(sqlite3.connect(folder / "documents.db")) as connection:
        (blob,) = connection.execute(f"SELECT {column} FROM passages").fetchone()
        connection.execute(f"UPDATE passages SET {column} = ?", (bytes([blob[0] ^ 4]) + blob[1:],))
        connection.commit()
    with Store.open(folder, readonly=True) as again:
        assert f"row {row}: its passages are not what was written" in again.verify().damage
        with pytest.raises(CorruptData, match="its passages are not what was written"):
            again.passages([row])


@pytest.mark.parametrize("change", ["spans = CAST(spans AS TEXT)", "vectors = 'x'"])
def test_passages_that_have_become_text_are_noticed(store, folder, embed, parts, change):
    """One flipped bit tells a text from a blob, and the bytes of small places are text."""
    (row,) = store.upsert([LONG], embed("one"), passages={0: parts}).rows
    store.close()
    with closing(sqlite3.connect(folder / "documents.db")) as connection:
        connection.execute(f"UPDATE passages SET {change}")
        connection.commit()
    with (
        Store.open(folder, readonly=True) as again,
        pytest.raises(CorruptData, match="its passages are not what was written"),
    ):
        again.passages([row])


def test_lost_passages_are_noticed(store, folder, embed, parts):
    """No row tells that another one is missing: the sum of all facts does."""
    store.upsert([LONG], embed("one"), passages={0: parts})
    store.close()
    with closing(sqlite3.connect(folder / "documents.db")) as connection:
        connection.execute("DELETE FROM passages")
        connection.commit()
    with Store.open(folder, readonly=True) as again:
        assert any("as a whole" in damage for damage in again.verify().damage)


def test_how_documents_are_cut_is_kept_and_covered(folder):
    cut = {"tokens": 256, "overlap": 32}
    with Store.create(folder, name="papers", encoder={}, dimension=8, passages=cut) as store:
        assert store.cutting == cut
    with closing(sqlite3.connect(folder / "documents.db")) as connection:
        connection.execute("""UPDATE meta SET value = '{"overlap":31,"tokens":256}' WHERE key = 'passages'""")
        connection.commit()
    with Store.open(folder, readonly=True) as again:
        assert any("as a whole" in damage for damage in again.verify().damage)


def test_collections_of_format_1_are_read_and_written_as_they_are(tmp_path, embed, parts):
    folder = Path(shutil.copytree(GOLDEN, tmp_path / "golden"))
    with Store.open(folder) as store:
        assert store.cutting is None
        before = store.count().documents
        store.upsert([Document("new", "n")], embed("n"))
        assert store.passages(store.rows()) == {}
        with pytest.raises(Conflict, match="format 1, which has no passages"):
            store.upsert([LONG], embed("one"), passages={0: parts})
        store.delete(["new"])
        assert store.count().documents == before
        assert store.verify().ok
    with Store.open(folder, readonly=True) as store:
        assert store.verify().ok

"""`Mirror` on real folders: ids stay whatever happens to files between two runs."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsearch.corpus import Mirror, Problems, RecordFields, read_sources
from dsearch.types import Document


class Kept:
    """Documents as a collection keeps them."""

    def __init__(self):
        self.documents = {}

    def index(self, *folders, problems=None, fields=None):
        """Mirror folders; returns the ids that were deleted."""
        mirror, problems = Mirror(), problems or Problems()
        mirror.learn(self.documents.values())
        sources = [str(folder) for folder in folders]
        for document in read_sources(sources, problems=problems, mirror=mirror, fields=fields):
            self.documents[document.id] = document
        gone = mirror.obsolete(problems)
        for id in gone:
            del self.documents[id]
        return gone

    def texts(self):
        return {document.metadata["path"]: document.text for document in self.documents.values()}

    def id_of(self, text):
        (id,) = (id for id, document in self.documents.items() if document.text == text)
        return id


def test_documents_below_a_folder_that_cannot_be_listed_stay(tmp_path, monkeypatch):
    for name in ("a.txt", "sub/b.txt", "sub/deep/c.txt", "other/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    kept = Kept()
    kept.index(tmp_path)
    shutil.rmtree(tmp_path / "other")
    scandir = os.scandir

    def refusing(path):
        if os.fspath(path).endswith("sub"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    problems = Problems()
    assert kept.index(tmp_path, problems=problems) == ["other/d.txt"]
    assert sorted(kept.documents) == ["a.txt", "sub/b.txt", "sub/deep/c.txt"]
    assert str(problems.first[0]) == f"{tmp_path / 'sub'}: cannot be read: Permission denied"


def test_the_document_of_a_linked_file_that_cannot_be_read_stays(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "real.txt").write_text("text")
    (tmp_path / "notes" / "link.txt").symlink_to(tmp_path / "real.txt")
    (tmp_path / "notes" / "a.txt").write_text("other")
    kept = Kept()
    kept.index(tmp_path / "notes")
    (tmp_path / "real.txt").write_bytes(b"\0\xff\0")
    problems = Problems()
    assert kept.index(tmp_path / "notes", problems=problems) == []
    assert problems.count == 1
    assert sorted(kept.documents) == ["a.txt", "link.txt"]


def test_a_folder_of_which_nothing_appears_keeps_its_documents(tmp_path):
    """It may be a disk that is not mounted."""
    (tmp_path / "a.txt").write_text("text")
    kept = Kept()
    kept.index(tmp_path)
    mirror = Mirror()
    mirror.learn(kept.documents.values())
    mirror.enter(str(tmp_path))
    assert mirror.obsolete() == []
    assert mirror.recorded == 1


def test_a_folder_belongs_to_the_innermost_one_that_was_indexed():
    mirror = Mirror()
    for root in ("/notes", "/notes/deep", "/other"):
        mirror.learn([Document("a", "text", metadata={"_file": {"root": root, "path": "a.txt"}})])
    assert mirror.root_of("/notes/deep/below") == "/notes/deep"
    assert mirror.root_of("/notes/deeper") == "/notes"
    assert mirror.root_of("/elsewhere") == "/elsewhere"


def test_a_folder_whose_name_begins_like_another_is_not_within_it(tmp_path):
    for name in ("notes/a.txt", "notes2/b.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    kept = Kept()
    kept.index(tmp_path / "notes", tmp_path / "notes2")
    assert kept.index(tmp_path / "notes") == []
    assert sorted(kept.texts().values()) == ["notes/a.txt", "notes2/b.txt"]


def test_an_object_without_text_costs_its_array_no_document(tmp_path):
    objects = [{"id": str(number), "text": f"text {number}"} for number in range(3)]
    (tmp_path / "a.json").write_text(json.dumps(objects))
    kept = Kept()
    kept.index(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps([*objects, {"id": "3"}]))
    problems = Problems()
    assert kept.index(tmp_path, problems=problems) == []
    assert (sorted(kept.documents), problems.count) == (["0", "1", "2"], 1)


def test_renamed_copies_are_told_apart_by_their_names(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for name in ("x.txt", "y.txt"):
            (tmp_path / folder / name).write_text("the same")
    kept = Kept()
    kept.index(tmp_path)
    (tmp_path / "one").rename(tmp_path / "three")
    assert kept.index(tmp_path) == []
    paths = {id: document.metadata["path"] for id, document in kept.documents.items()}
    assert paths == {
        "one/x.txt": "three/x.txt",
        "one/y.txt": "three/y.txt",
        "two/x.txt": "two/x.txt",
        "two/y.txt": "two/y.txt",
    }


def test_copies_that_moved_keep_their_ids_by_their_names_in_whatever_order_they_are_read(tmp_path):
    for name in ("x.txt", "y.txt"):
        (tmp_path / name).write_text("the same")
    kept = Kept()
    kept.index(tmp_path)
    for folder, name in (("1", "y.txt"), ("2", "x.txt")):
        (tmp_path / folder).mkdir()
        (tmp_path / name).rename(tmp_path / folder / name)
    assert kept.index(tmp_path) == []
    paths = {id: document.metadata["path"] for id, document in kept.documents.items()}
    assert paths == {"x.txt": "2/x.txt", "y.txt": "1/y.txt"}


def test_of_two_copies_of_a_lost_file_one_keeps_its_id(tmp_path):
    (tmp_path / "a.txt").write_text("the same")
    kept = Kept()
    kept.index(tmp_path)
    (tmp_path / "a.txt").unlink()
    for name in ("x.txt", "y.txt"):
        (tmp_path / name).write_text("the same")
    assert kept.index(tmp_path) == []
    assert {id: document.metadata["path"] for id, document in kept.documents.items()} == {
        "a.txt": "x.txt",
        "y.txt": "y.txt",
    }


def test_parts_of_a_file_that_became_short_are_deleted(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join("word " * 100 + str(n) for n in range(3000)))
    kept = Kept()
    kept.index(tmp_path)
    parts = len(kept.documents)
    assert parts > 5
    (tmp_path / "a.txt").rename(tmp_path / "b.txt")
    assert kept.index(tmp_path) == []
    assert sorted(kept.documents)[0] == "a.txt"
    (tmp_path / "b.txt").write_text("short")
    assert len(kept.index(tmp_path)) == parts - 1
    assert kept.id_of("short") == "a.txt"


NAMES = st.sampled_from(["a.txt", "b.txt", "c.txt", "sub/a.txt", "sub/b.txt"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, st.sampled_from(["red", "green", "blue"])),
        st.tuples(st.just("delete"), NAMES, st.just("")),
        st.tuples(st.just("move"), NAMES, NAMES),
        st.tuples(st.just("index"), st.just(""), st.just("")),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_collection_is_always_the_image_of_the_folder(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("m")
    (folder / "sub").mkdir()
    kept = Kept()
    for what, name, other in [*steps, ("index", "", "")]:
        path = folder / name
        if what == "write":
            path.write_text(other)
        elif what == "delete":
            path.unlink(missing_ok=True)
        elif what == "move" and path.exists():
            path.replace(folder / other)
        elif what == "index":
            present = {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*.txt")}
            if not present:
                continue  # refused: no file can be read
            before = {d.metadata["path"]: (id, d.text) for id, d in kept.documents.items()}
            kept.index(folder)
            assert kept.texts() == present
            for id, document in kept.documents.items():
                if document.metadata["path"] in before:
                    assert before[document.metadata["path"]][0] == id


def test_a_folder_that_is_named_from_where_one_stands_is_mirrored_as_by_its_whole_name(tmp_path, monkeypatch):
    (tmp_path / "notes").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "notes" / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    kept = Kept()
    kept.index("notes")
    (tmp_path / "notes" / "b.txt").unlink()
    assert kept.index("notes") == ["b.txt"]


CHAIRS = ["A1,A red chair,10", "A2,A red chair,25", "A3,A blue lamp,7"]


def put_rows(path, rows, header="sku,text,price"):
    path.write_text("".join(f"{row}\n" for row in [header, *rows]))


def rows_of(kept):
    """Row of each document that the collection has, sorted."""
    return sorted(
        f"{document.metadata['sku']},{document.text},{document.metadata['price']}"
        for document in kept.documents.values()
    )


def test_rows_without_an_id_that_have_the_same_text_are_all_kept(tmp_path):
    put_rows(tmp_path / "t.csv", CHAIRS)
    kept, problems = Kept(), Problems()
    assert kept.index(tmp_path, problems=problems) == []
    assert (rows_of(kept), problems.count) == (CHAIRS, 0)
    before = dict(kept.documents)
    assert kept.index(tmp_path) == []
    assert kept.documents == before


@pytest.mark.parametrize("gone", range(3))
def test_a_row_that_is_gone_from_the_file_goes_and_no_other(tmp_path, gone):
    put_rows(tmp_path / "t.csv", CHAIRS)
    kept = Kept()
    kept.index(tmp_path)
    put_rows(tmp_path / "t.csv", CHAIRS[:gone] + CHAIRS[gone + 1 :])
    assert len(kept.index(tmp_path)) == 1
    assert rows_of(kept) == CHAIRS[:gone] + CHAIRS[gone + 1 :]


@pytest.mark.parametrize("skipped", ["few,cells", "A4,too,many,cells", "A4,,5", 'A4,"quoted"badly,5'])
@pytest.mark.parametrize("id_column", ["sku", None])
def test_a_row_that_is_gone_goes_where_another_row_was_skipped(tmp_path, skipped, id_column):
    fields, kept = RecordFields(id=id_column), Kept()
    put_rows(tmp_path / "t.csv", [skipped, *CHAIRS])
    kept.index(tmp_path, fields=fields)
    assert len(kept.documents) == 3
    put_rows(tmp_path / "t.csv", [*CHAIRS[:2], skipped])
    problems = Problems()
    assert len(kept.index(tmp_path, problems=problems, fields=fields)) == 1
    assert problems.count == 1
    assert {document.text for document in kept.documents.values()} == {"A red chair"}
    assert len(kept.documents) == 2


def test_a_row_that_is_gone_goes_where_another_has_the_id_of_an_earlier_one(tmp_path):
    fields, kept = RecordFields(id="sku"), Kept()
    put_rows(tmp_path / "t.csv", CHAIRS)
    kept.index(tmp_path, fields=fields)
    put_rows(tmp_path / "t.csv", [*CHAIRS[:2], "A1,A desk,3"])
    problems = Problems()
    assert kept.index(tmp_path, problems=problems, fields=fields) == ["A3"]
    assert problems.count == 1


GOOD = {"id": "a", "text": "one"}, {"id": "b", "text": "two"}, {"id": "c", "text": "three"}
SKIPPED = [
    '{"id": "c", "text": "three", "value": "high"}',
    '{"id": "c", "text": 3}',
    '{"id": "c", "text": " "}',
    '{"id": "c", "text": "three", "text": "four"}',
]
MALFORMED = ['{"id": "c", "text": "thr', '{"id": "c" "text": "three"}', '{"id":"c","text":"caf\udce9"}']


@pytest.mark.parametrize(
    ("suffix", "skipped"),
    [*((".jsonl", line) for line in [*SKIPPED, *MALFORMED]), *((".json", line) for line in SKIPPED)],
)
def test_a_record_that_cannot_be_read_keeps_its_document_and_no_other(tmp_path, suffix, skipped):
    def put(*lines):
        text = "\n".join(lines) if suffix == ".jsonl" else f"[{','.join(lines)}]"
        (tmp_path / f"rows{suffix}").write_bytes(text.encode(errors="surrogateescape"))

    kept, problems = Kept(), Problems()
    put(*map(json.dumps, GOOD))
    kept.index(tmp_path)
    put(json.dumps(GOOD[0]), skipped)
    assert kept.index(tmp_path, problems=problems) == ["b"]
    assert problems.count == 1
    assert sorted(kept.documents) == ["a", "c"]


@pytest.mark.parametrize("skipped", ["A3,more,cells,7", "A3", "A3,,7", 'A3,"quoted"badly,7'])
def test_a_row_that_cannot_be_read_keeps_its_document_and_no_other(tmp_path, skipped):
    fields, kept = RecordFields(id="sku"), Kept()
    put_rows(tmp_path / "t.csv", CHAIRS)
    kept.index(tmp_path, fields=fields)
    put_rows(tmp_path / "t.csv", [CHAIRS[0], skipped])
    assert kept.index(tmp_path, fields=fields) == ["A2"]
    assert sorted(kept.documents) == ["A1", "A3"]


def test_a_row_of_parquet_that_cannot_be_read_keeps_its_document_and_no_other(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def put(rows):
        table = pyarrow.table({"id": [row[0] for row in rows], "text": [row[1] for row in rows]})
        parquet.write_table(table, tmp_path / "t.parquet")

    kept = Kept()
    put([("a", "one"), ("b", "two"), ("c", "three")])
    kept.index(tmp_path)
    put([("a", "one"), ("c", " ")])
    assert kept.index(tmp_path) == ["b"]
    assert sorted(kept.documents) == ["a", "c"]


def test_a_message_that_cannot_be_read_keeps_its_document_and_no_other(tmp_path):
    def put(messages):
        parts = [
            f"From x\nMessage-ID: <{id}@x>\nSubject: {text}\n\n{text}\n\n" for id, text in messages.items()
        ]
        (tmp_path / "m.mbox").write_text("".join(parts))

    kept = Kept()
    put({"a": "one", "b": "two", "c": "three"})
    kept.index(tmp_path)
    put({"a": "one", "c": ""})
    assert kept.index(tmp_path) == ["b@x"]
    assert sorted(kept.documents) == ["a@x", "c@x"]


def test_a_row_of_which_only_the_value_cannot_be_read_keeps_its_document_without_an_id(tmp_path):
    kept = Kept()
    put_rows(tmp_path / "t.csv", ["one,1", "two,2", "three,3"], "text,value")
    kept.index(tmp_path)
    put_rows(tmp_path / "t.csv", ["one,1", "three,high"], "text,value")
    kept.index(tmp_path)
    assert sorted(document.text for document in kept.documents.values()) == ["one", "three"]


def test_a_quote_that_is_not_closed_keeps_the_rows_behind_it(tmp_path):
    fields, kept = RecordFields(id="sku"), Kept()
    put_rows(tmp_path / "t.csv", CHAIRS)
    kept.index(tmp_path, fields=fields)
    put_rows(tmp_path / "t.csv", ['A1,"A red chair,10', *CHAIRS[1:]])
    (tmp_path / "other.csv").write_text("sku,text,price\nB1,A desk,3\n")
    assert kept.index(tmp_path, fields=fields) == []
    assert sorted(kept.documents) == ["A1", "A2", "A3", "B1"]


def test_rows_that_move_between_tables_are_the_same_documents(tmp_path):
    for name, rows in {"1.csv": CHAIRS[:2], "2.csv": CHAIRS[2:]}.items():
        put_rows(tmp_path / name, rows)
    kept = Kept()
    kept.index(tmp_path)
    before = sorted(kept.documents)
    put_rows(tmp_path / "1.csv", CHAIRS[:1])
    put_rows(tmp_path / "2.csv", CHAIRS[1:])
    assert kept.index(tmp_path) == []
    assert (sorted(kept.documents), rows_of(kept)) == (before, CHAIRS)


def test_equal_rows_of_two_folders_are_two_documents(tmp_path):
    for folder, row in {"one": CHAIRS[0], "two": CHAIRS[1]}.items():
        (tmp_path / folder).mkdir()
        put_rows(tmp_path / folder / "t.csv", [row])
    kept = Kept()
    kept.index(tmp_path / "one")
    kept.index(tmp_path / "two")
    assert rows_of(kept) == CHAIRS[:2]
    before = sorted(kept.documents)
    assert kept.index(tmp_path / "one", tmp_path / "two") == []
    assert kept.index(tmp_path / "two") == []
    assert (sorted(kept.documents), rows_of(kept)) == (before, CHAIRS[:2])


def test_one_table_of_a_folder_that_is_named_itself_replaces_no_equal_row_of_another(tmp_path):
    put_rows(tmp_path / "1.csv", CHAIRS[:1])
    put_rows(tmp_path / "2.csv", CHAIRS[1:])
    kept = Kept()
    kept.index(tmp_path)
    put_rows(tmp_path / "2.csv", [*CHAIRS[1:], "A4,A red chair,99"])
    assert kept.index(tmp_path / "2.csv") == []
    assert rows_of(kept) == [*CHAIRS, "A4,A red chair,99"]


ROWS = st.lists(st.sampled_from([*CHAIRS, "A4,A blue lamp,8", "few,cells"]), max_size=5)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(ROWS, ROWS, st.booleans()), min_size=1, max_size=4))
def test_the_collection_is_always_the_image_of_the_tables(tmp_path_factory, states):
    """Whatever rows come, go, move or stand twice, in two tables of which the first may be renamed."""
    folder, kept = tmp_path_factory.mktemp("m"), Kept()
    for first, second, renamed in states:
        for path in folder.iterdir():
            path.unlink()
        put_rows(folder / ("a.csv" if renamed else "c.csv"), first)
        put_rows(folder / "b.csv", second)
        good = sorted(row for row in [*first, *second] if row != "few,cells")
        if not good:
            continue  # nothing of the folder appears: it may be a disk that is not mounted
        kept.index(folder)
        assert rows_of(kept) == good
        ids = {id: document.metadata for id, document in kept.documents.items()}
        assert kept.index(folder) == []
        assert {id: document.metadata for id, document in kept.documents.items()} == ids

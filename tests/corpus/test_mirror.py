"""`Mirror` on real folders: ids stay whatever happens to files between two runs."""

from __future__ import annotations

import json
import os
import shutil

from hypothesis import given, settings
from hypothesis import strategies as st

from dsearch.corpus import Mirror, Problems, read_sources
from dsearch.types import Document


class Kept:
    """Documents as a collection keeps them."""

    def __init__(self):
        self.documents = {}

    def index(self, *folders, problems=None):
        """Mirror folders; returns the ids that were deleted."""
        mirror, problems = Mirror(), problems or Problems()
        mirror.learn(self.documents.values())
        for document in read_sources([str(folder) for folder in folders], problems=problems, mirror=mirror):
            self.documents[document.id] = document
        gone = mirror.obsolete(problems.sources)
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

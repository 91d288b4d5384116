"""Files of folders and patterns: which are listed, in which order, and what is left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsearch.corpus.files import base_of, files_below, is_pattern, matches


def tree(root: Path, *names: str, **contents: str) -> Path:
    for name in (*names, *contents):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents.get(name, "x"))
    return root


def listed(root: Path, *, ignored: bool = False) -> list[str]:
    return [path.relative_to(root).as_posix() for path in files_below(root, ignored=ignored)]


def ignore(folder: Path, rules: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text(rules)


def test_files_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    assert listed(tree(tmp_path, "b/z", "b.txt", "a/c/d", "a.txt")) == ["a/c/d", "a.txt", "b/z", "b.txt"]


@pytest.mark.parametrize("folder", ["node_modules", "__pycache__", ".git", ".hidden"])
def test_some_folders_are_not_entered(tmp_path: Path, folder: str) -> None:
    assert listed(tree(tmp_path, f"{folder}/a.txt", "b/.secret", "c.txt")) == ["c.txt"]


def test_environments_of_python_and_collections_are_not_entered(tmp_path: Path) -> None:
    tree(tmp_path, "env/pyvenv.cfg", "env/a", "home/papers/documents.db", "home/papers/watermark")
    tree(tmp_path, "half/documents.db", "half/b")
    assert listed(tmp_path) == ["half/b", "half/documents.db"]


def test_linked_files_are_listed_and_linked_folders_not(tmp_path: Path) -> None:
    tree(tmp_path, "real/a")
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    (tmp_path / "file").symlink_to(tmp_path / "real" / "a")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    assert listed(tmp_path) == ["file", "real/a"]


def test_the_innermost_rule_decides(tmp_path: Path) -> None:
    """As in Git: a file of a folder below says more than one above it, in both directions."""
    tree(tmp_path, "a.log", "in/a.log", "in/b.txt", "in/deep/b.txt", "in/deep/c.log")
    ignore(tmp_path, "*.log\n")
    ignore(tmp_path / "in", "!a.log\nb.txt\n")
    ignore(tmp_path / "in" / "deep", "!b.txt\n")
    assert listed(tmp_path) == ["in/a.log", "in/deep/b.txt"]
    assert listed(tmp_path, ignored=True) == [
        "a.log",
        "in/a.log",
        "in/b.txt",
        "in/deep/b.txt",
        "in/deep/c.log",
    ]


def test_rules_with_a_slash_are_about_folders_and_places(tmp_path: Path) -> None:
    tree(tmp_path, "build/a", "x/build/a", "x/build.txt", "top", "x/top", "file/of")
    ignore(tmp_path, "build/\n/top\nfile\n")
    assert listed(tmp_path) == ["x/build.txt", "x/top"]


def test_nothing_of_a_folder_that_is_left_out_is_taken_back(tmp_path: Path) -> None:
    """As in Git, which does not look into it."""
    tree(tmp_path, "build/keep.txt", "other/keep.txt")
    ignore(tmp_path, "build/\n!keep.txt\n")
    assert listed(tmp_path) == ["other/keep.txt"]


def test_rules_hold_in_their_own_folder_alone(tmp_path: Path) -> None:
    tree(tmp_path, "a/x.txt", "b/x.txt")
    ignore(tmp_path / "a", "x.txt\n")
    assert listed(tmp_path) == ["b/x.txt"]


def test_a_folder_that_cannot_be_listed_is_told_or_raised(tmp_path: Path) -> None:
    told: list[Path] = []
    assert list(files_below(tmp_path / "none", lambda path, error: told.append(path))) == []
    assert told == [tmp_path / "none"]
    with pytest.raises(FileNotFoundError):
        list(files_below(tmp_path / "none"))
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    tree(tmp_path, "z")
    assert list(files_below(tmp_path, lambda path, error: told.append(path))) == [tmp_path / "z"]
    assert told[1:] == [loop]
    with pytest.raises(OSError, match="loop"):
        list(files_below(tmp_path))


def test_a_pattern_has_a_mark_and_is_no_file(tmp_path: Path) -> None:
    for name in ("a*", "a?", "a["):
        assert is_pattern(str(tmp_path / name))
        (tmp_path / name).symlink_to(tmp_path / "missing")
        assert not is_pattern(str(tmp_path / name))
    assert not is_pattern(str(tmp_path / "a"))


def test_a_pattern_lists_files_once_by_the_shortest_path(tmp_path: Path) -> None:
    tree(tmp_path, "long/way/a.txt", "b.txt", ".hidden.txt", ".folder/c.txt")
    (tmp_path / "way").symlink_to(tmp_path / "long" / "way")
    (tmp_path / "folder.txt").mkdir()
    found = matches(f"{tmp_path}/**/*.txt")
    assert found == [tmp_path / "b.txt", tmp_path / "way" / "a.txt"]
    os.link(tmp_path / "b.txt", tmp_path / "c.txt")  # another name in the same folder is another file
    (tmp_path / "d.txt").symlink_to("b.txt")
    assert matches(f"{tmp_path}/*.txt") == [tmp_path / name for name in ("b.txt", "c.txt", "d.txt")]


@pytest.mark.parametrize(
    ("pattern", "base"),
    [("a/b/*.txt", "a/b"), ("a/x?/b", "a"), ("[ab]/c", "."), ("/d/**/e", "/d"), ("a/b", "a/b")],
)
def test_ids_are_relative_to_the_folder_before_the_first_wildcard(pattern: str, base: str) -> None:
    assert base_of(pattern) == Path(base)


def test_of_links_of_one_length_the_first_name_counts(tmp_path: Path) -> None:
    tree(tmp_path, "far/away/a.txt")
    for name in "hgfedcb":
        (tmp_path / name).symlink_to(tmp_path / "far" / "away")
    assert matches(f"{tmp_path}/**/*.txt") == [tmp_path / "b" / "a.txt"]

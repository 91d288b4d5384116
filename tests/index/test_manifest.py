"""A manifest: its bytes, its digest, and each difference of a file that it names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support.index import rewrite_manifest

from dsearch.errors import CorruptData, UnsupportedFormat
from dsearch.index import Manifest
from dsearch.index.manifest import FORMAT, MANIFEST_NAME, OLDEST_FORMAT, WITHOUT_PASSAGES

CONTENTS = {"rows.npy": b"rows", "keyword/parts.npy": b"parts of it"}


@pytest.fixture
def folder(tmp_path: Path, build: Callable[..., tuple[Path, Manifest]]) -> Path:
    return build(tmp_path / "000001")[0]


@pytest.fixture
def small(tmp_path: Path, build: Callable[..., tuple[Path, Manifest]]) -> tuple[Path, Manifest]:
    """A manifest of two small files."""
    made = build(tmp_path / "000002")[1]
    files: dict[str, dict[str, Any]] = {}
    for name, content in CONTENTS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
        files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return tmp_path, replace(made, files=files)


def test_it_is_read_as_it_was_written(folder: Path) -> None:
    read = Manifest.read(folder)
    raw = (folder / MANIFEST_NAME).read_bytes()
    assert read.to_bytes() == raw
    content = json.loads(raw)
    assert content.pop("digest") == read.digest
    assert raw.endswith(b"}\n")
    assert "passages" not in content
    assert content["format"] == WITHOUT_PASSAGES
    with_passages = replace(read, format=FORMAT, passages=3)
    assert json.loads(with_passages.to_bytes())["passages"] == 3


def test_every_part_is_in_the_digest(folder: Path) -> None:
    read = Manifest.read(folder)
    changes: dict[str, Any] = {
        "number": read.number + 1,
        "sequence": read.sequence + 1,
        "created_at": "2001-01-01T00:00:00Z",
        "rows": read.rows + 1,
        "encoder_dim": 9,
        "key_dim": 9,
        "dense": {**read.dense, "kind": "SQ8"},
        "keyword": None,
        "encoder": {},
        "files": {},
        "format": FORMAT,
    }
    digests = {name: replace(read, **{name: value}).digest for name, value in changes.items()}
    assert len({read.digest, *digests.values()}) == len(changes) + 1


@pytest.mark.parametrize("change", ["byte", "blank", "no digest", "cut", "gone", "list"])
def test_a_changed_manifest_is_damage(folder: Path, change: str) -> None:
    path = folder / MANIFEST_NAME
    raw = path.read_bytes()
    content = json.loads(raw)
    if change == "gone":
        path.unlink()
    else:
        del content["digest"]
        changed = {
            "byte": raw.replace(b'"rows": 6', b'"rows": 7'),
            "blank": raw + b"\n",
            "no digest": json.dumps(content).encode(),
            "cut": raw[:-5],
            "list": b"[]",
        }[change]
        assert changed != raw
        path.write_bytes(changed)
    with pytest.raises(CorruptData, match="it is derived data: build the generation again"):
        Manifest.read(folder)


@pytest.mark.parametrize("number", [OLDEST_FORMAT - 1, FORMAT + 1, "2", None, True, 2.0])
def test_another_format_is_refused_if_nothing_else_changed(folder: Path, number: Any) -> None:
    rewrite_manifest(folder, format=number)
    with pytest.raises(UnsupportedFormat, match=f"this release reads {OLDEST_FORMAT} to {FORMAT}"):
        Manifest.read(folder)


def test_whole_files_are_verified(small: tuple[Path, Manifest]) -> None:
    folder, manifest = small
    manifest.verify(folder)


def test_a_file_that_the_disk_cannot_read_is_damaged(
    small: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, manifest = small
    monkeypatch.setattr("dsearch.index.manifest.file_digest", Mock(side_effect=OSError(5, "broken disk")))
    with pytest.raises(CorruptData, match=r"rows\.npy: cannot be read \(.*broken disk"):
        manifest.verify(folder)


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("damage", ["gone", "longer", "shorter", "other", "link"])
def test_each_difference_of_a_file_is_named(small: tuple[Path, Manifest], damage: str, name: str) -> None:
    folder, manifest = small
    path, content = folder / name, CONTENTS[name]
    if damage == "gone":
        path.unlink()
    elif damage == "link":
        path.rename(folder / "elsewhere")
        path.symlink_to(folder / "elsewhere")
    else:
        path.write_bytes(
            {"longer": content + b"x", "shorter": content[:-1], "other": b"X" + content[1:]}[damage]
        )
    message = {
        "gone": "missing or not a plain file",
        "link": "missing or not a plain file",
        "longer": f"{len(content) + 1} bytes instead of {len(content)}",
        "shorter": f"{len(content) - 1} bytes instead of {len(content)}",
        "other": "SHA-256 differs from the manifest",
    }[damage]
    with pytest.raises(CorruptData, match=f"{path}: {message}"):
        manifest.verify(folder)
    if damage == "other":  # of which only the size is compared
        manifest.verify(folder, sizes_alone=[name])
    else:
        with pytest.raises(CorruptData, match=message):
            manifest.verify(folder, sizes_alone=[name])


def test_a_linked_folder_is_not_followed(small: tuple[Path, Manifest]) -> None:
    folder, manifest = small
    (folder / "keyword").rename(folder / "elsewhere")
    (folder / "keyword").symlink_to(folder / "elsewhere")
    with pytest.raises(CorruptData, match=r"parts\.npy: missing or not a plain file"):
        manifest.verify(folder)


def test_a_manifest_against_its_schema_is_not_written(folder: Path) -> None:
    with pytest.raises(CorruptData, match=r"manifest\.json: \$\.rows -1 is less than the minimum of 0"):
        replace(Manifest.read(folder), rows=-1).to_bytes()


def test_brackets_without_end_are_damage(folder: Path) -> None:
    (folder / MANIFEST_NAME).write_bytes(b"[" * 200_000)
    with pytest.raises(CorruptData):
        Manifest.read(folder)

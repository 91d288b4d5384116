"""Saved datasets: their files in their own order, and none from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsearch.corpus.formats.datasets import dataset_files, is_dataset
from dsearch.errors import InvalidSource


def saved(folder: Path, *files: str, missing: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset_info.json").write_text("{}")
    state: dict[str, Any] = {"_data_files": [{"filename": name} for name in files]}
    (folder / "state.json").write_text(json.dumps(state))
    for name in files:
        if name != missing and Path(name).suffix:
            (folder / name).write_bytes(b"")
    return folder


def test_a_dataset_has_its_state_and_its_description_or_splits(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", "0.arrow")
    assert is_dataset(folder)
    for name in ("state.json", "dataset_info.json"):
        half = saved(tmp_path / f"without-{name}")
        (half / name).unlink()
        assert not is_dataset(half)
    (tmp_path / "dataset_dict.json").write_text('{"splits": []}')
    assert is_dataset(tmp_path)
    assert dataset_files(tmp_path) == []


def test_files_come_in_the_order_of_the_dataset(tmp_path: Path) -> None:
    for split in ("test", "train"):
        saved(tmp_path / split, "b.arrow", "a.arrow")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert dataset_files(tmp_path) == [
        tmp_path / split / name for split in ("train", "test") for name in ("b.arrow", "a.arrow")
    ]


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "in/a", ".."])
def test_a_name_with_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidSource, match="is not a plain name"):
        dataset_files(saved(tmp_path / "a", name))
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": [name]}))
    with pytest.raises(InvalidSource, match="is not a plain name"):
        dataset_files(tmp_path)


def test_what_is_missing_or_no_dataset_is_named(tmp_path: Path) -> None:
    folder = saved(tmp_path, "0.arrow", "1.arrow", missing="1.arrow")
    with pytest.raises(InvalidSource, match=r"1\.arrow: missing, though state\.json names it"):
        dataset_files(folder)
    for content in ("[]", "{}", "no json", '{"_data_files": [{}]}'):
        (folder / "state.json").write_text(content)
        with pytest.raises(InvalidSource, match="not a whole saved dataset"):
            dataset_files(folder)

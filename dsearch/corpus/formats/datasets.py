"""Hugging Face datasets that were saved to disk (`save_to_disk`), read without the datasets library.

dataset_dict.json      {"splits": ["train", "test"]}; a folder for each split, of this layout:
dataset_info.json      what the columns are
state.json             {"_data_files": [{"filename": "data-00000-of-00001.arrow"}, …], …}
data-….arrow           Arrow, streaming format
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from dsearch.errors import InvalidSource

_SPLITS = "dataset_dict.json"
_STATE = "state.json"
_INFO = "dataset_info.json"


def is_dataset(folder: Path) -> bool:
    """True if a folder is a saved dataset, or several splits of one."""
    return (folder / _SPLITS).is_file() or all((folder / name).is_file() for name in (_STATE, _INFO))


def dataset_files(folder: Path) -> list[Path]:
    """The Arrow files of a saved dataset in its own order, split after split.

    Raises:
        InvalidSource: a file of the dataset is missing or invalid.
    """
    try:
        if (folder / _SPLITS).is_file():
            splits = _read(folder / _SPLITS)["splits"]
            return [file for split in splits for file in dataset_files(_inside(folder, split))]
        state = _read(folder / _STATE)
        files = [_inside(folder, file["filename"]) for file in state["_data_files"]]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InvalidSource(f"{folder}: not a whole saved dataset ({error!r}); save it again") from error
    for file in files:
        if not file.is_file():
            raise InvalidSource(f"{file}: missing, though {_STATE} names it; save the dataset again")
    return files


def _read(path: Path) -> Any:
    return orjson.loads(path.read_bytes())


def _inside(folder: Path, name: str) -> Path:
    if Path(name).name != name or name == "..":
        raise ValueError(f"{name!r} is not a plain name")
    return folder / name

"""Checkpoint file from which an interrupted training run resumes: tensors and numbers, nothing pickled.

    tensors    learned parameters, Adam's moments, the order of the present epoch, the random generator
    numbers    epoch, step, loss sums, seconds

Together they determine the rest of the run, so a resumed run ends, bit for bit, like an uninterrupted one (on
one thread; the order of sums over threads varies).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dsearch.errors import CorruptData
from dsearch.index.durable import sync_file, sync_folder

Checkpoint = tuple[dict[str, Tensor], dict[str, Any]]
"""(tensors, numbers)"""


def write_checkpoint(path: Path, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Put this in the place of the checkpoint that is there, at once or not at all."""
    unfinished = path.with_name(f".{path.name}.writing")
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    unfinished.write_bytes(save(content, metadata={"numbers": json.dumps(numbers)}))
    sync_file(unfinished)
    os.replace(unfinished, path)
    sync_folder(path.parent)


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Read the last checkpoint; None if there is none.

    Raises:
        CorruptData: the file is damaged.
    """
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return tensors, json.loads((file.metadata() or {})["numbers"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CorruptData(
            f"{path}: cannot be read ({error}); delete the run's folder and train again"
        ) from error

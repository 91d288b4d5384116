"""A checkpoint is whole or absent, and durable when its call returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dsearch.errors import CorruptData
from dsearch.training.loop.run_folder import read_checkpoint, write_checkpoint


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    assert read_checkpoint(path) is None
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).T)
    write_checkpoint(path, {"x": parameter, "n": torch.tensor(3)}, {"epoch": 2, "loss": [0.5, None]})
    read = read_checkpoint(path)
    assert read is not None
    tensors, numbers = read
    assert tensors["x"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert int(tensors["n"]) == 3
    assert numbers == {"epoch": 2, "loss": [0.5, None]}
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize("content", [b"", b"nonsense" * 9, None])
def test_damage_is_named_with_what_to_do(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, {"x": torch.zeros(9)}, {})
    path.write_bytes(path.read_bytes()[:-1] if content is None else content)
    with pytest.raises(CorruptData, match="delete the run's folder and train again"):
        read_checkpoint(path)

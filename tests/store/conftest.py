from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dsearch.store import Store

DIMENSION = 8

Embed = Callable[..., np.ndarray]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "home" / "papers"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with Store.create(folder, name="papers", encoder={"name": "test"}, dimension=DIMENSION) as created:
        yield created


@pytest.fixture
def embed() -> Embed:
    """Unit vectors that depend on the contents alone."""

    def embed(*contents: str) -> np.ndarray:
        rows = [np.random.default_rng(list(content.encode())).normal(size=DIMENSION) for content in contents]
        stacked = np.array(rows).reshape(-1, DIMENSION)
        return (stacked / np.linalg.norm(stacked, axis=1, keepdims=True)).astype(np.float32)

    return embed

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsearch.index import Generation, Manifest

TEXTS = [
    "Gradient descent on convex functions",
    "The index holds keys and values",
    "",
    "Searching for a needle: search, searched, searches",
    "the and of",
    "Index of convex keys",
]
ENCODER = {"name": "test-encoder", "revision": "1", "max_tokens": 256}


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., tuple[Path, Manifest]]:
    """Builds a small generation; every argument of `Generation.build` can be replaced."""

    def build(folder: Path | None = None, **changes: Any) -> tuple[Path, Manifest]:
        folder = folder or tmp_path / "generations" / "000012"
        arguments: dict[str, Any] = {
            "number": 12,
            "sequence": 345,
            "rows": np.array([0, 3, 4, 8, 9, 20]),
            "embeddings": np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32),
            "texts": TEXTS,
            "encoder": ENCODER,
        }
        return folder, Generation.build(folder, **(arguments | changes))

    return build

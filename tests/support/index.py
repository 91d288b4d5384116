"""Keys as a dense index stores them, and manifests as others would write them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from dsearch.index import DenseIndex


def stored_keys(index: DenseIndex, start: int, stop: int) -> Float32[np.ndarray, "range key_dim"]:
    """The stored keys from `start` up to `stop`: exact for Flat, rounded for other kinds."""
    return index._stored.reconstruct_n(start, stop - start)


def rewrite_manifest(folder: Path, **changes: Any) -> None:
    """Write a manifest with a right digest, as an attacker or another release would."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text()) | changes
    del content["digest"]

    def canonical() -> str:
        return json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n"

    content["digest"] = hashlib.sha256(canonical().encode()).hexdigest()
    path.write_text(canonical())

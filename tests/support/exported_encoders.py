"""A tiny encoder with a cache of exports."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny_encoder import WORDS, write_tiny_encoder

from dsearch.encoder import Backend, TextEncoder, load_encoder

TEXTS = ["question 1 red", "", "answer 7", " ".join(WORDS * 4), "apple bread honey honey", "nobody knows"]
ALL = ["onnx float32", "onnx int8", "openvino float32", "openvino bfloat16"]


class TinyHome:
    """A tiny encoder, and a cache that the tests of this module share."""

    def __init__(self, folder: Path):
        self.encoder = str(write_tiny_encoder(folder))
        self.cache = folder / "cache"

    def load(self, backend: str | None, dtype: str | None = None, **options: object) -> TextEncoder:
        return load_encoder(self.encoder, backend=backend, dtype=dtype, cache=self.cache, **options)  # type: ignore[arg-type]

    def exports(self, kind: str) -> list[Path]:
        return [folder for folder in self.cache.glob(f"model-{kind}-*") if folder.is_dir()]


def needs(name: str) -> None:
    if Backend(name, "float32").missing(exporting=True):
        pytest.skip(f"needs the extra {name}")

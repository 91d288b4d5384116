"""A tiny encoder with a cache of exports."""

from __future__ import annotations

import shutil
from copy import copy
from pathlib import Path
from typing import Any

import pytest
from support.tiny_encoder import WORDS, write_tiny_encoder

from dsearch.encoder import TextEncoder, export, load_encoder
from dsearch.encoder import export_cache as exports
from dsearch.encoder.backends import openvino_installed
from dsearch.encoder.compiled import Exporting
from dsearch.encoder.weights import find_weights

TEXTS = ["question 1 red", "", "answer 7", " ".join(WORDS * 4), "apple bread honey honey", "nobody knows"]
DTYPES = ["float32", "bfloat16"]


class TinyHome:
    """A tiny encoder, and a cache that the tests of this module share."""

    def __init__(self, folder: Path):
        self.encoder = str(write_tiny_encoder(folder))
        self.cache = folder / "cache"

    def load(self, backend: str, dtype: str | None = None, **options: object) -> TextEncoder:
        return load_encoder(self.encoder, backend=backend, dtype=dtype, cache=self.cache, **options)  # type: ignore[arg-type]

    def with_empty_cache(self, cache: Path, patch: pytest.MonkeyPatch) -> TinyHome:
        """The same encoder with another cache, into which the model is copied, not exported again."""
        exported = exports.export_folder(
            Exporting(self.encoder, find_weights(self.encoder), None, self.cache, _unneeded)
        )
        if not exported.is_dir():
            self.load("openvino")

        def copy_model(whole: object, folder: Path) -> None:
            for file in ("model.xml", "model.bin"):
                shutil.copy(exported / file, folder / file)

        patch.setattr(export, "_write_model", copy_model)
        other = copy(self)
        other.cache = cache
        return other

    def exports(self) -> list[Path]:
        return [folder for folder in self.cache.glob("model-openvino-*") if folder.is_dir()]


def need_openvino() -> None:
    if not openvino_installed():
        pytest.skip("needs the extra openvino")


def _unneeded() -> Any:
    raise AssertionError("the model is exported already")

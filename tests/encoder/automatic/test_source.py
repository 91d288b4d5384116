"""The encoder of a home by its settings: each of them reaches what loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsearch.config import Settings
from dsearch.encoder import EncoderSource
from dsearch.encoder.automatic import source


def settings(tmp_path: Path, **own: Any) -> Settings:
    return Settings(home=tmp_path / "home", encoder="own", **own)


def test_each_setting_reaches_the_source(tmp_path: Path) -> None:
    told: list[str] = []
    made = EncoderSource.of(
        settings(tmp_path, backend="onnx", dtype="int8", device="cuda:1", cache=tmp_path / "cache"),
        tell=told.append,
    )
    assert (made.name, made.backend, made.dtype, made.device) == ("own", "onnx", "int8", "cuda:1")
    assert made.cache.is_relative_to(tmp_path / "cache")
    assert made.tell == told.append
    assert EncoderSource.of(settings(tmp_path), name="other").name == "other"


def test_the_source_loads_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(source, "load_encoder", lambda *args, **options: asked.append((args, options)))
    made = EncoderSource("own", tmp_path, "onnx", "int8", "cuda:1", print)
    made()
    assert asked == [
        (
            ("own",),
            {"backend": "onnx", "dtype": "int8", "device": "cuda:1", "cache": tmp_path, "tell": print},
        )
    ]


@pytest.mark.parametrize(
    ("backend", "dtype", "runs_by"),
    [
        ("torch", None, "torch float32"),
        ("torch", "bfloat16", "torch bfloat16"),
        ("onnx", "int8", "onnx int8"),
    ],
)
def test_a_back_end_that_is_named_runs_it(
    tmp_path: Path, backend: str, dtype: str | None, runs_by: str
) -> None:
    in_use = EncoderSource("own", tmp_path, backend, dtype).in_use()
    assert (in_use.name, in_use.runs_by, in_use.note) == ("own", runs_by, None)

"""The encoder of a home by its settings: each of them reaches what loads it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.config import Settings
from dsearch.encoder import Backend, BackendChoice, EncoderSource
from dsearch.encoder.automatic import source
from dsearch.encoder.automatic.outcome import ExportOutcome
from dsearch.encoder.automatic.source import encoder_cache
from dsearch.encoder.weights import Weights


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


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """What was measured on it by precision, and what was exported for `auto`."""
    state = SimpleNamespace(choices={}, exported=ExportOutcome())
    monkeypatch.setattr(source, "find_weights", lambda name: Weights(tmp_path, "", "a" * 64))
    monkeypatch.setattr(source, "read_choice", lambda cache, sha256, dtype: state.choices.get(dtype))
    monkeypatch.setattr(source, "preferred", lambda: "openvino")
    monkeypatch.setattr(source, "outcome", lambda *given: state.exported)
    monkeypatch.setattr(source, "states_problem_of", lambda *given: None)
    return state


@pytest.mark.parametrize(
    ("backend", "dtype", "runs_by"),
    [
        ("torch", None, "torch float32"),
        ("torch", "bfloat16", "torch bfloat16"),
        ("onnx", "int8", "onnx int8"),
    ],
)
def test_a_back_end_that_is_named_runs_it(
    tmp_path: Path, machine: SimpleNamespace, backend: str, dtype: str | None, runs_by: str
) -> None:
    in_use = EncoderSource("own", tmp_path, backend, dtype).in_use()
    assert (in_use.name, in_use.runs_by, in_use.note) == ("own", runs_by, None)


@pytest.mark.parametrize(("backend", "device"), [(None, "cpu"), (None, "cuda"), ("auto", "cuda")])
def test_nothing_is_prepared_for_a_card_nor_without_auto(
    tmp_path: Path, machine: SimpleNamespace, backend: str | None, device: str
) -> None:
    own = EncoderSource("own", tmp_path, backend, None, device).in_use()
    assert (own.runs_by, own.note) == ("torch float32", None)
    machine.exported = ExportOutcome(Backend("openvino", "float32"))
    assert EncoderSource("own", tmp_path, backend, None, device).in_use() == own
    assert EncoderSource("own", tmp_path, "auto").in_use().runs_by == "openvino float32"


def test_what_was_measured_holds_for_its_precision(tmp_path: Path, machine: SimpleNamespace) -> None:
    machine.choices["int8"] = BackendChoice(Backend("onnx", "int8"), ())
    eight, other = (EncoderSource("own", tmp_path, "auto", dtype).in_use() for dtype in ("int8", None))
    assert (eight.runs_by, eight.note) == ("onnx int8", "measured by dsearch backends")
    assert (other.runs_by, other.note) == (
        "torch float32",
        "its first use prepares openvino in the background",
    )


def test_a_cache_that_is_named_is_taken_as_it_is(tmp_path: Path) -> None:
    for named in (Path("mine"), tmp_path / "mine"):
        assert encoder_cache(tmp_path / "home", named) == named

"""The encoder of a home by its settings: each of them reaches what loads it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.config import Settings
from dsearch.encoder import EncoderSource, load
from dsearch.encoder.automatic import ExportOutcome
from dsearch.encoder.load import encoder_cache
from dsearch.encoder.weights import Weights


def settings(tmp_path: Path, **own: Any) -> Settings:
    return Settings(home=tmp_path / "home", encoder="own", **own)


def test_each_setting_reaches_the_source(tmp_path: Path) -> None:
    told: list[str] = []
    made = EncoderSource.of(
        settings(tmp_path, backend="openvino", dtype="bfloat16", device="cuda:1", cache=tmp_path / "cache"),
        tell=told.append,
    )
    assert (made.name, made.backend, made.dtype, made.device) == ("own", "openvino", "bfloat16", "cuda:1")
    assert made.cache.is_relative_to(tmp_path / "cache")
    assert made.tell == told.append
    assert EncoderSource.of(settings(tmp_path), name="other").name == "other"


def test_the_source_loads_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(load, "load_encoder", lambda *args, **options: asked.append((args, options)))
    made = EncoderSource("own", tmp_path, "openvino", "bfloat16", "cuda:1", print)
    made()
    assert asked == [
        (
            ("own",),
            {
                "backend": "openvino",
                "dtype": "bfloat16",
                "device": "cuda:1",
                "cache": tmp_path,
                "tell": print,
            },
        )
    ]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """What was exported on it for `auto`."""
    state = SimpleNamespace(exported=ExportOutcome(), installed=True)
    monkeypatch.setattr(load, "find_weights", lambda name: Weights(tmp_path, "", "a" * 64))
    monkeypatch.setattr(load, "openvino_installed", lambda: state.installed)
    monkeypatch.setattr(load, "outcome", lambda *given: state.exported)
    monkeypatch.setattr(load, "states_problem_of", lambda *given: None)
    return state


@pytest.mark.parametrize(
    ("backend", "dtype", "runs_by"),
    [
        ("torch", None, "torch float32"),
        ("torch", "bfloat16", "torch bfloat16"),
        ("openvino", "float32", "openvino float32"),
    ],
)
def test_a_back_end_that_is_named_runs_it(
    tmp_path: Path, machine: SimpleNamespace, backend: str, dtype: str | None, runs_by: str
) -> None:
    in_use = EncoderSource("own", tmp_path, backend, dtype).in_use()
    assert (in_use.name, in_use.runs_by, in_use.note) == ("own", runs_by, None)


@pytest.mark.parametrize(("backend", "device"), [("torch", "cpu"), ("torch", "cuda"), ("auto", "cuda")])
def test_nothing_is_prepared_for_a_card_nor_without_auto(
    tmp_path: Path, machine: SimpleNamespace, backend: str, device: str
) -> None:
    own = EncoderSource("own", tmp_path, backend, None, device).in_use()
    assert (own.runs_by, own.note) == ("torch float32", None)
    machine.exported = ExportOutcome("float32")
    assert EncoderSource("own", tmp_path, backend, None, device).in_use() == own
    assert EncoderSource("own", tmp_path, "auto").in_use().runs_by == "openvino float32"


def test_auto_says_why_torch_runs(tmp_path: Path, machine: SimpleNamespace) -> None:
    def note(dtype: str | None = None) -> tuple[str, str | None]:
        in_use = EncoderSource("own", tmp_path, "auto", dtype).in_use()
        return in_use.runs_by, in_use.note

    assert note() == ("torch float32", "its first use prepares openvino in the background")
    assert note("bfloat16")[0] == "torch bfloat16"
    machine.exported = ExportOutcome(problem="no fast tokenizer")
    assert note() == ("torch float32", "no fast tokenizer")
    machine.installed = False
    assert note() == ("torch float32", "openvino is not installed")


def test_a_cache_that_is_named_is_taken_as_it_is(tmp_path: Path) -> None:
    for named in (Path("mine"), tmp_path / "mine"):
        assert encoder_cache(tmp_path / "home", named) == named

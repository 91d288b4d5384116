"""`dsearch.open` takes its encoder from the settings, as the command line does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fakes import HashingEncoder

import dsearch
from dsearch.errors import InvalidRequest
from dsearch.types import Document


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    calls: list[tuple[str, dict[str, Any]]] = []

    def load_encoder(name: str, **options: Any) -> HashingEncoder:
        calls.append((name, options))
        return HashingEncoder()

    monkeypatch.setattr("dsearch.encoder.load_encoder", load_encoder)
    return calls


def test_back_end_and_encoder_are_those_of_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[tuple[str, dict[str, Any]]]
) -> None:
    monkeypatch.setenv("DSEARCH_BACKEND", "openvino")
    monkeypatch.setenv("DSEARCH_ENCODER", "some/model")
    monkeypatch.setenv("DSEARCH_DTYPE", "int8")
    home = tmp_path / "home"
    with dsearch.open(home) as engine:
        assert loaded == []  # at its first use
        engine.engine.create("food").ingest([Document("a", "apple honey")])
        assert engine.search("food", "apple").hits
    ((name, options),) = loaded
    assert (name, options["backend"], options["dtype"], options["device"]) == (
        "some/model",
        "openvino",
        "int8",
        "cpu",
    )
    assert options["cache"].parent == home


def test_a_given_encoder_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[tuple[str, dict[str, Any]]]
) -> None:
    monkeypatch.setenv("DSEARCH_BACKEND", "openvino")
    with dsearch.open(tmp_path, encoder=HashingEncoder) as engine:
        engine.engine.create("food")
    assert loaded == []


def test_a_wrong_setting_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEARCH_BACKNED", "onnx")
    with dsearch.open(tmp_path) as engine, pytest.raises(InvalidRequest, match="DSEARCH_BACKNED"):
        engine.engine.create("food")

"""`dsearch.open` takes its encoder from the settings, as the command line does."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from support.fakes import HashingEncoder

import dsearch
from dsearch.errors import InvalidRequest
from dsearch.service.tasks.jobs import open_readonly
from dsearch.types import Document


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    calls: list[tuple[str, dict[str, Any]]] = []

    def load_encoder(name: str, **options: Any) -> HashingEncoder:
        calls.append((name, options))
        return HashingEncoder()

    monkeypatch.setattr("dsearch.encoder.load.load_encoder", load_encoder)
    return calls


def test_back_end_and_encoder_are_those_of_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[tuple[str, dict[str, Any]]]
) -> None:
    monkeypatch.setenv("DSEARCH_BACKEND", "openvino")
    monkeypatch.setenv("DSEARCH_ENCODER", "some/model")
    monkeypatch.setenv("DSEARCH_DTYPE", "bfloat16")
    monkeypatch.setenv("DSEARCH_CACHE", str(tmp_path / "exports"))
    home = tmp_path / "home"
    with dsearch.open(home) as engine:
        assert loaded == []  # at its first use
        engine.engine.create("food").ingest([Document("a", "apple honey")])
        assert engine.search("food", "apple").hits
    ((name, options),) = loaded
    assert (name, options["backend"], options["dtype"], options["device"]) == (
        "some/model",
        "openvino",
        "bfloat16",
        "cpu",
    )
    assert options["cache"] == tmp_path / "exports"


def test_a_user_without_a_folder_for_caches_has_exports_in_the_home_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[tuple[str, dict[str, Any]]]
) -> None:
    def nowhere() -> Path:
        raise RuntimeError("no home folder")

    monkeypatch.delenv("DSEARCH_CACHE", raising=False)
    monkeypatch.setattr("dsearch.encoder.load.machine_cache", nowhere)
    with dsearch.open(tmp_path / "mine") as engine:
        engine.engine.create("food")
    ((_, options),) = loaded
    assert options["cache"].parent == tmp_path / "mine"


def test_a_given_encoder_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[tuple[str, dict[str, Any]]]
) -> None:
    monkeypatch.setenv("DSEARCH_BACKEND", "openvino")
    with dsearch.open(tmp_path, encoder=HashingEncoder) as engine:
        engine.engine.create("food")
    assert loaded == []


def test_a_wrong_setting_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEARCH_BACKNED", "openvino")
    with pytest.raises(InvalidRequest, match="DSEARCH_BACKNED"):
        dsearch.open(tmp_path)


def test_an_engine_takes_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[tuple[str, dict[str, Any]]]
) -> None:
    monkeypatch.setenv("DSEARCH_BACKEND", "openvino")
    monkeypatch.setenv("DSEARCH_ENCODER", "some/model")
    with dsearch.SearchEngine(tmp_path) as engine:
        engine.create("food")
    ((name, options),) = loaded
    assert (name, options["backend"]) == ("some/model", "openvino")


def test_a_task_of_the_server_takes_those_of_the_server(
    tmp_path: Path, loaded: list[tuple[str, dict[str, Any]]]
) -> None:
    with open_readonly(
        tmp_path, "some/model", "cpu", "float32", "openvino", "next/model", tmp_path / "exports"
    ) as engine:
        assert engine.encoder
        assert engine.next_encoder
    assert [name for name, _ in loaded] == ["some/model", "next/model"]
    for _, options in loaded:
        assert (options["backend"], options["dtype"]) == ("openvino", "float32")
        assert options["cache"] == tmp_path / "exports"


def test_the_other_settings_of_an_engine_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEARCH_DEVICE", "cuda:7")
    monkeypatch.setenv("DSEARCH_THREADS", "3")
    monkeypatch.setenv("DSEARCH_QUERY_CACHE_BYTES", "4096")
    budgets: list[int | None] = []
    monkeypatch.setattr("dsearch.threads.set_threads", budgets.append)
    with dsearch.open(tmp_path) as engine:
        assert engine.device == "cuda:7"
        assert engine.engine.query_cache.max_bytes == 4096
        assert budgets == [3]
    with dsearch.open(tmp_path, device="cpu") as engine:
        assert engine.device == "cpu"


def test_each_argument_and_the_settings_of_encoders_reach_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[tuple[str, dict[str, Any]]]
) -> None:
    made: list[tuple[Any, dict[str, Any]]] = []

    def engine(home: Any, **options: Any) -> Any:
        made.append((home, options))
        return "engine"

    monkeypatch.setattr("dsearch.client.local.engine.SearchEngine", engine)
    monkeypatch.setenv("DSEARCH_NEXT_ENCODER", "next/model")
    monkeypatch.setenv("DSEARCH_BACKEND", "openvino")
    observer: Any = object()
    given: dict[str, Any] = {
        "readonly": True,
        "encoder": HashingEncoder,
        "observer": observer,
        "device": "cuda:5",
    }
    assert {"home", *given} == {*inspect.signature(dsearch.open).parameters}
    opened = dsearch.open(tmp_path, **given)
    ((home, options),) = made
    assert (home, opened.engine, opened.observer, opened.device) == (tmp_path, "engine", observer, "cuda:5")
    assert (options["readonly"], options["encoder"]) == (True, HashingEncoder)
    options["next_encoder"]()
    ((name, of_encoder),) = loaded
    assert (name, of_encoder["backend"]) == ("next/model", "openvino")
    monkeypatch.delenv("DSEARCH_NEXT_ENCODER")
    dsearch.open(tmp_path)
    assert (made[1][1]["readonly"], made[1][1]["next_encoder"]) == (False, None)

"""Which back end runs the encoder: named, found before, or torch; told by doctor and by collections."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cli.terminal import Terminal
from support.tiny_encoder import write_tiny_encoder

from dsearch.encoder import Backend, BackendChoice, load
from dsearch.engine import SearchEngine


@pytest.fixture
def dsearch(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    if Backend("onnx", "float32").missing(exporting=True):
        pytest.skip("needs the extra onnx")
    monkeypatch.setenv("DSEARCH_ENCODER", str(write_tiny_encoder(tmp_path / "tiny")))
    monkeypatch.setattr(load, "installed", lambda: ["onnx"])
    monkeypatch.setenv("DSEARCH_BACKEND", "auto")
    monkeypatch.setenv("DSEARCH_CACHE", str(tmp_path / "cache"))
    for module in ("load", "automatic.source"):  # what is measured, not what is exported unasked
        monkeypatch.setattr(f"dsearch.encoder.{module}.preferred", lambda: None)
    return Terminal(tmp_path / "home", capsys, monkeypatch)


def test_what_is_found_once_runs_later_commands(
    dsearch: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "fruit.jsonl"
    source.write_text('{"id": "a", "text": "apple bread"}\n{"id": "b", "text": "red green blue"}\n')

    def by() -> str:
        return json.loads(dsearch("doctor", "--json")[1])["encoder"]["backend"]

    assert by() == "torch float32"
    assert dsearch("index", source, "-c", "exact", "--no-passages")[0] == 0
    assert not (tmp_path / "cache").exists()  # nothing is measured unasked

    monkeypatch.setattr(load, "_fastest", lambda rates: Backend("onnx", "float32"))
    code, out, err = dsearch("backends")
    assert code == 0
    assert "onnx      float32" in out
    chosen = [line.split()[:2] for line in out.splitlines() if line.endswith("  ← runs the encoder")]
    assert chosen == [["onnx", "float32"]]
    assert "the encoder runs by onnx float32 from now on" in err
    assert by().startswith("onnx float32")
    monkeypatch.setattr("dsearch.cli.commands.system.say", _refuse)  # known: not measured again
    assert json.loads(dsearch("backends", "--json")[1])["backend"] == {"name": "onnx", "dtype": "float32"}

    assert dsearch("index", source, "-c", "compiled", "--no-passages")[0] == 0
    for name, backend in (("exact", "torch"), ("compiled", "onnx")):
        hits = json.loads(dsearch("search", "apple", "-c", name, "--json")[1])["hits"]
        assert [hit["id"] for hit in hits] == ["a", "b"]
        with SearchEngine(tmp_path / "home", readonly=True) as engine:
            assert engine.collection(name).store.encoder["backend"] == backend
        assert dsearch("search", "apple", "-c", name, "--backend", "torch")[0] == 0


@pytest.mark.parametrize("options", [("--measure",), ()])
def test_it_is_measured_again_where_that_is_asked_for(
    dsearch: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    measured: list[bool] = []
    caches: list[Path] = []

    def choice_of(name: str, cache: Path, *, measure: bool = False, **_: object) -> BackendChoice:
        measured.append(measure)
        caches.append(cache)
        return BackendChoice(Backend("torch", "float32"), ())

    monkeypatch.setattr("dsearch.encoder.choice_of", choice_of)
    assert dsearch("backends", *options)[0] == 0
    assert measured == [bool(options)]

    def no_folder() -> Path:
        raise RuntimeError("a user without one")

    monkeypatch.delenv("DSEARCH_CACHE")
    monkeypatch.setattr("dsearch.encoder.automatic.source.machine_cache", no_folder)
    assert dsearch("backends", "--home", tmp_path / "other", *options)[0] == 0
    assert [cache.parent for cache in caches] == [tmp_path, tmp_path / "other"]


def test_an_unknown_one_is_refused(dsearch: Terminal, tmp_path: Path) -> None:
    source = tmp_path / "one.jsonl"
    source.write_text('{"id": "a", "text": "apple"}\n')
    code, _, err = dsearch("index", source, "--backend", "tensorflow")
    assert code == 1
    assert "backend='tensorflow'; use torch, onnx, openvino or auto" in err


def _refuse(message: str) -> None:
    raise AssertionError(message)

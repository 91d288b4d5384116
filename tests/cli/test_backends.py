"""Which back end runs the encoder, as the commands take it and `doctor` names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cli.terminal import Terminal
from support.tiny_encoder import write_tiny_encoder

from dsearch.engine import SearchEngine


@pytest.fixture
def dsearch(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("DSEARCH_ENCODER", str(write_tiny_encoder(tmp_path / "tiny")))
    monkeypatch.setenv("DSEARCH_BACKEND", "auto")
    monkeypatch.setenv("DSEARCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("dsearch.encoder.load.openvino_installed", lambda: False)
    return Terminal(tmp_path / "home", capsys, monkeypatch)


def test_without_openvino_torch_runs_the_encoder_and_doctor_says_so(
    dsearch: Terminal, tmp_path: Path
) -> None:
    source = tmp_path / "fruit.jsonl"
    source.write_text('{"id": "a", "text": "apple bread"}\n{"id": "b", "text": "red green blue"}\n')
    encoder = json.loads(dsearch("doctor", "--json")[1])["encoder"]
    assert (encoder["backend"], encoder["note"]) == ("torch float32", "openvino is not installed")
    assert dsearch("index", source, "-c", "fruit", "--no-passages")[0] == 0
    assert not (tmp_path / "cache").exists()
    with SearchEngine(tmp_path / "home", readonly=True) as engine:
        assert engine.collection("fruit").store.encoder["backend"] == "torch"


@pytest.mark.parametrize("backend", ["tensorflow", "onnx"])
def test_an_unknown_one_is_refused(dsearch: Terminal, tmp_path: Path, backend: str) -> None:
    source = tmp_path / "one.jsonl"
    source.write_text('{"id": "a", "text": "apple"}\n')
    code, _, err = dsearch("index", source, "--backend", backend)
    assert code == 1
    assert f"backend='{backend}'; use torch, openvino or auto" in err

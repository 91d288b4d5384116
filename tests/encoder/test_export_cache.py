"""Exports in the cache: what their key depends on, when they are whole, and how they are opened."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsearch.encoder import export_cache as module
from dsearch.encoder.compiled import Exporting
from dsearch.encoder.export_cache import (
    agreement_of,
    cached_encoder,
    checked_record,
    export_folder,
    open_export,
    states_problem,
    states_problem_of,
)
from dsearch.encoder.weights import Weights
from dsearch.errors import InvalidRequest

IDENTITY = {
    "name": "first name",
    "revision": "r",
    "weights_sha256": "a" * 64,
    "pooling": "mean",
    "max_tokens": 128,
    "backend": "torch",
    "dtype": "float32",
    "dimension": 16,
}
STATES = {
    "float32": {"agrees": True, "mean": 1.0, "least": 1.0},
    "bfloat16": {"agrees": False, "mean": 0.99, "least": 0.5},
}


def no_encoder() -> Any:
    raise AssertionError


@pytest.fixture
def request_(tmp_path: Path) -> Exporting:
    return Exporting("models/my model", Weights(tmp_path, "", "a" * 64), None, tmp_path / "cache", no_encoder)


def exported(request: Exporting, **changes: Any) -> Path:
    """Write an export of two small files."""
    folder = export_folder(request)
    folder.mkdir(parents=True)
    files = {"model.xml": b"model", "tokenizer.json": b"{}"}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    record = {
        "identity": IDENTITY,
        "longest": 512,
        "inputs": ["input_ids"],
        "padding": 7,
        "prompts": {"query": "q: "},
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        "agreement": {"float32": {"least": 1.0, "mean": 1.0, "agrees": True}},
        "states": STATES,
        **changes,
    }
    (folder / "export.json").write_text(json.dumps(record))
    return folder


def test_the_key_is_of_weights_format_and_every_library(
    request_: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = ("torch", "transformers", "sentence-transformers", "openvino")
    installed = dict.fromkeys(libraries, "1.0")
    monkeypatch.setattr(module, "version", lambda name: installed[name])
    before = export_folder(request_)
    for name in installed:
        with monkeypatch.context() as patch:
            patch.setitem(installed, name, "1.1")
            assert export_folder(request_) != before, name
    for digest in ("sha256", "settings_sha256"):
        other = replace(request_, weights=replace(request_.weights, **{digest: "b" * 64}))
        assert export_folder(other) != before
    with monkeypatch.context() as patch:
        patch.setattr(module, "FORMAT", module.FORMAT + 1)
        assert export_folder(request_) != before
    assert export_folder(replace(request_, max_tokens=5)) == before  # it takes any length


def test_folders_are_named_by_encoder_and_library(request_: Exporting) -> None:
    assert export_folder(request_).name.rpartition("-")[0] == "my_model-openvino"
    long = export_folder(replace(request_, name="x" * 99)).name
    assert long.startswith("x" * 60 + "-openvino-")
    assert export_folder(replace(request_, name="/")).name.startswith("model-openvino-")
    assert export_folder(request_).parent == request_.cache


@pytest.mark.parametrize("damage", ["changed", "other", "cut", "no file", "no record", "no json", "no list"])
def test_an_export_is_whole_or_none(
    request_: Exporting, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    folder = exported(request_)
    assert checked_record(folder) is not None
    record = folder / "export.json"
    if damage == "changed":
        (folder / "model.xml").write_bytes(b"modem")
    elif damage == "other":
        (folder / "tokenizer.json").write_bytes(b"[]")
    elif damage == "cut":
        (folder / "model.xml").write_bytes(b"mode")
    elif damage == "no file":
        (folder / "model.xml").unlink()
    elif damage == "no record":
        record.unlink()
    else:
        record.write_text("{" if damage == "no json" else '{"files": 3}')
    with caplog.at_level(logging.WARNING):
        assert checked_record(folder) is None
    assert "exporting again" in caplog.text
    assert cached_encoder(request_, "float32") is None


def test_an_export_that_is_not_there_is_no_warning(
    request_: Exporting, caplog: pytest.LogCaptureFixture
) -> None:
    assert cached_encoder(request_, "float32") is None
    assert agreement_of(request_) is None
    assert states_problem_of(request_, "float32") is None
    assert caplog.text == ""


def test_what_was_measured_is_read_without_a_model(request_: Exporting) -> None:
    exported(request_)
    assert agreement_of(request_) == {"float32": {"least": 1.0, "mean": 1.0, "agrees": True}}
    assert states_problem_of(request_, "float32") is None
    problem = states_problem_of(request_, "bfloat16")
    assert problem == (
        "token states of openvino bfloat16 agree with torch's to a cosine of 0.99000 in the mean of a text "
        "and 0.50000 of a token, too little"
    )
    assert states_problem({"states": {}}, "float32") == "the exported encoder has no state for each token"


@pytest.mark.parametrize(("dtype", "precision"), [("float32", "f32"), ("bfloat16", "bf16")])
def test_an_export_is_opened_with_all_that_is_known_of_it(
    request_: Exporting, monkeypatch: pytest.MonkeyPatch, dtype: str, precision: str
) -> None:
    folder = exported(request_)
    made: dict[str, Any] = {}

    class Opened:
        def __init__(self, run: Any, tokenizer: str, **options: Any):
            made.update(run=run, tokenizer=tokenizer, **options)

    monkeypatch.setattr(module, "CompiledEncoder", Opened)
    monkeypatch.setattr(module, "openvino_session", lambda model, kind: (model.name, kind))
    encoder = cached_encoder(request_, dtype, batch_size=5)
    assert encoder is not None
    assert made["run"] == ("model.xml", precision)
    assert (made["tokenizer"], made["inputs"], made["padding"]) == ("{}", ["input_ids"], 7)
    assert (made["prompts"], made["batch_size"]) == ({"query": "q: "}, 5)
    assert made["reference"] is no_encoder
    assert (made["states_problem"] is None) == (dtype == "float32")
    identity = made["identity"]
    assert (identity.name, identity.backend, identity.dtype) == (request_.name, "openvino", dtype)
    assert (identity.max_tokens, identity.weights_sha256) == (128, "a" * 64)
    assert encoder.origin == (request_, dtype, 5)
    cached_encoder(request_, dtype)
    assert made["batch_size"] == 32
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("asked", "longest", "taken"), [(1, 512, 1), (512, 512, 512), (None, 512, 128), (9999, None, 9999)]
)
def test_windows_within_the_models(
    request_: Exporting, monkeypatch: pytest.MonkeyPatch, asked: int | None, longest: int | None, taken: int
) -> None:
    made: dict[str, Any] = {}

    class Opened:
        def __init__(self, *given: Any, **options: Any):
            made.update(options)

    monkeypatch.setattr(module, "CompiledEncoder", Opened)
    monkeypatch.setattr(module, "openvino_session", lambda model, kind: None)
    request = replace(request_, max_tokens=asked)
    folder = exported(request, longest=longest)
    open_export(request, "float32", folder, checked_record(folder) or {})
    assert made["identity"].max_tokens == taken


@pytest.mark.parametrize("asked", [0, 513, -1])
def test_windows_beyond_are_refused(request_: Exporting, asked: int) -> None:
    request = replace(request_, max_tokens=asked)
    exported(request)
    with pytest.raises(InvalidRequest, match=f"max_tokens={asked}; models/my model takes 1 to 512"):
        cached_encoder(request, "float32")

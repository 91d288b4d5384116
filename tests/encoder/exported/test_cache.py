"""Exports in the cache: what their key depends on, when they are whole, and how they are opened."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsearch.encoder.backends import Backend
from dsearch.encoder.exported import cache as module
from dsearch.encoder.exported.cache import (
    agreement_of,
    cached_encoder,
    checked_record,
    export_folder,
    open_export,
    states_problem,
    states_problem_of,
    versions,
)
from dsearch.encoder.exported.request import Exporting
from dsearch.encoder.weights import Weights
from dsearch.errors import InvalidRequest

ONNX, OPENVINO = Backend("onnx", "float32"), Backend("openvino", "float32")
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


def exported(request: Exporting, backend: Backend, **changes: Any) -> Path:
    """Write an export of two small files."""
    folder = export_folder(request, backend)
    folder.mkdir(parents=True)
    files = {"model.onnx": b"model", "tokenizer.json": b"{}"}
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
    installed = dict.fromkeys(
        [
            "torch",
            "transformers",
            "sentence-transformers",
            "onnx",
            "onnxscript",
            "onnxruntime",
            "openvino",
            "nncf",
        ],
        "1.0",
    )
    monkeypatch.setattr(module, "version", lambda name: installed[name])
    before = {backend: export_folder(request_, backend) for backend in (ONNX, OPENVINO)}
    used = {ONNX: {"onnx", "onnxscript", "onnxruntime"}, OPENVINO: {"openvino", "nncf"}}
    for name in installed:
        with monkeypatch.context() as patch:
            patch.setitem(installed, name, "1.1")
            for backend, folder in before.items():
                both = name in ("torch", "transformers", "sentence-transformers")
                changed = export_folder(request_, backend) != folder
                assert changed == (both or name in used[backend]), (name, backend)
    for digest in ("sha256", "settings_sha256"):
        other = replace(request_, weights=replace(request_.weights, **{digest: "b" * 64}))
        assert export_folder(other, ONNX) != before[ONNX]
    with monkeypatch.context() as patch:
        patch.setattr(module, "FORMAT", module.FORMAT + 1)
        assert export_folder(request_, ONNX) != before[ONNX]
    assert export_folder(replace(request_, max_tokens=5), ONNX) == before[ONNX]  # it takes any length


def test_folders_are_named_by_encoder_library_and_int8(request_: Exporting) -> None:
    def kind(name: str, dtype: str) -> str:
        return export_folder(request_, Backend(name, dtype)).name.rpartition("-")[0]

    assert kind("onnx", "float32") == "my_model-onnx"
    assert kind("onnx", "int8") == "my_model-onnx-int8"
    assert kind("openvino", "float32") == kind("openvino", "bfloat16") == "my_model-openvino"
    long = export_folder(replace(request_, name="x" * 99), ONNX).name
    assert long.startswith("x" * 60 + "-onnx-")
    assert export_folder(replace(request_, name="/"), ONNX).name.startswith("model-onnx-")
    assert export_folder(request_, ONNX).parent == request_.cache


def test_versions_are_of_what_is_installed() -> None:
    assert list(versions("numpy", "no-such-package")) == ["numpy"]


@pytest.mark.parametrize("damage", ["changed", "other", "cut", "no file", "no record", "no json", "no list"])
def test_an_export_is_whole_or_none(
    request_: Exporting, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    folder = exported(request_, ONNX)
    assert checked_record(folder) is not None
    record = folder / "export.json"
    if damage == "changed":
        (folder / "model.onnx").write_bytes(b"modem")
    elif damage == "other":
        (folder / "tokenizer.json").write_bytes(b"[]")
    elif damage == "cut":
        (folder / "model.onnx").write_bytes(b"mode")
    elif damage == "no file":
        (folder / "model.onnx").unlink()
    elif damage == "no record":
        record.unlink()
    else:
        record.write_text("{" if damage == "no json" else '{"files": 3}')
    with caplog.at_level(logging.WARNING):
        assert checked_record(folder) is None
    assert "exporting again" in caplog.text
    assert cached_encoder(request_, ONNX) is None


def test_an_export_that_is_not_there_is_no_warning(
    request_: Exporting, caplog: pytest.LogCaptureFixture
) -> None:
    assert cached_encoder(request_, ONNX) is None
    assert agreement_of(request_, ONNX) is None
    assert states_problem_of(request_, ONNX) is None
    assert caplog.text == ""


def test_what_was_measured_is_read_without_a_model(request_: Exporting) -> None:
    exported(request_, OPENVINO)
    assert agreement_of(request_, OPENVINO) == {"float32": {"least": 1.0, "mean": 1.0, "agrees": True}}
    assert states_problem_of(request_, OPENVINO) is None
    problem = states_problem_of(request_, Backend("openvino", "bfloat16"))
    assert problem == (
        "token states of openvino bfloat16 agree with torch's to a cosine of 0.99000 in the mean of a text "
        "and 0.50000 of a token, too little"
    )
    assert states_problem({"states": {}}, ONNX) == "the exported encoder has no state for each token"


@pytest.mark.parametrize("backend", [ONNX, OPENVINO, Backend("openvino", "bfloat16")], ids=str)
def test_an_export_is_opened_with_all_that_is_known_of_it(
    request_: Exporting, monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    folder = exported(request_, backend)
    made: dict[str, Any] = {}

    class Opened:
        def __init__(self, run: Any, tokenizer: str, **options: Any):
            made.update(run=run, tokenizer=tokenizer, **options)

    monkeypatch.setattr(module, "CompiledEncoder", Opened)
    monkeypatch.setattr(module, "onnx_session", lambda model: ("onnx", model.name))
    monkeypatch.setattr(module, "openvino_session", lambda model, kind: ("openvino", model.name, kind))
    encoder = cached_encoder(request_, backend, batch_size=5)
    assert encoder is not None
    assert (
        made["run"]
        == {
            "onnx float32": ("onnx", "model.onnx"),
            "openvino float32": ("openvino", "model.xml", "f32"),
            "openvino bfloat16": ("openvino", "model.xml", "bf16"),
        }[str(backend)]
    )
    assert (made["tokenizer"], made["inputs"], made["padding"]) == ("{}", ["input_ids"], 7)
    assert (made["prompts"], made["batch_size"]) == ({"query": "q: "}, 5)
    assert made["few_shapes"] == (backend.name == "openvino")
    assert made["reference"] is no_encoder
    assert (made["states_problem"] is None) == (backend.dtype == "float32")
    identity = made["identity"]
    assert (identity.name, identity.backend, identity.dtype) == (request_.name, backend.name, backend.dtype)
    assert (identity.max_tokens, identity.weights_sha256) == (128, "a" * 64)
    assert encoder.origin == (request_, backend.name, backend.dtype, 5)
    cached_encoder(request_, backend)
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
    monkeypatch.setattr(module, "onnx_session", lambda model: None)
    request = replace(request_, max_tokens=asked)
    folder = exported(request, ONNX, longest=longest)
    open_export(request, ONNX, folder, checked_record(folder) or {})
    assert made["identity"].max_tokens == taken


@pytest.mark.parametrize("asked", [0, 513, -1])
def test_windows_beyond_are_refused(request_: Exporting, asked: int) -> None:
    request = replace(request_, max_tokens=asked)
    exported(request, ONNX)
    with pytest.raises(InvalidRequest, match=f"max_tokens={asked}; models/my model takes 1 to 512"):
        cached_encoder(request, ONNX)

"""An export appears whole or not at all, and what a killed one left goes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsearch.encoder.backends import Backend
from dsearch.encoder.exported import export as module
from dsearch.encoder.exported.cache import checked_record
from dsearch.encoder.exported.export import export
from dsearch.encoder.exported.request import Exporting
from dsearch.encoder.weights import Weights
from dsearch.errors import EncoderUnavailable, InvalidRequest

BACKEND = Backend("onnx", "float32")


@pytest.fixture
def request_(tmp_path: Path) -> Exporting:
    return Exporting("model", Weights(tmp_path, "", "a" * 64), None, tmp_path / "cache", lambda: None)  # type: ignore[arg-type, return-value]


def written(request: Exporting, backend: Backend, folder: Path) -> dict[str, Any]:
    assert folder.name == f".folder.{os.getpid()}"
    (folder / "model.onnx").write_bytes(b"new")
    return {"by": str(backend)}


def test_what_a_killed_export_left_is_removed(request_: Exporting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_write", written)
    cache = request_.cache
    for name in (".folder.1", f".folder.{os.getpid()}", ".other.1", "folder"):
        (cache / name).mkdir(parents=True)
        (cache / name / "model.onnx").write_bytes(b"old")
    assert export(request_, BACKEND, cache / "folder") == {"by": "onnx float32"}
    left = {path.name for path in cache.iterdir() if path.is_dir()}
    assert left == {"folder", ".other.1"}  # another export may be at work there
    assert (cache / "folder" / "model.onnx").read_bytes() == b"new"


def test_an_export_that_fails_leaves_what_was_there(
    request_: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(request: Exporting, backend: Backend, folder: Path) -> dict[str, Any]:
        (folder / "model.onnx").write_bytes(b"half")
        raise InvalidRequest("no fast tokenizer")

    monkeypatch.setattr(module, "_write", failing)
    with pytest.raises(InvalidRequest, match="no fast tokenizer"):
        export(request_, BACKEND, request_.cache / "folder")
    assert [path.name for path in request_.cache.iterdir() if path.is_dir()] == []


def test_what_another_process_exported_meanwhile_is_taken(
    request_: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_write", lambda *given: pytest.fail("exported twice"))
    monkeypatch.setattr(module, "checked_record", lambda folder: {"by": "another"})
    assert export(request_, BACKEND, request_.cache / "folder") == {"by": "another"}


def test_a_cache_that_cannot_be_written_is_named(
    request_: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write", full)
    with pytest.raises(EncoderUnavailable) as raised:
        export(request_, BACKEND, request_.cache / "folder")
    message = str(raised.value)
    assert message.startswith(
        "onnx float32 needs the encoder as a file of its own, which cannot be written to "
    )
    assert "No space left on device" in message
    assert message.endswith("make room or let this user write there, or use --backend torch")


@pytest.mark.parametrize(
    ("backend", "knows", "dtypes"),
    [
        (Backend("openvino", "float32"), True, ("float32", "bfloat16")),
        (Backend("openvino", "bfloat16"), False, ("float32",)),
        (Backend("openvino", "int8"), True, ("int8",)),
        (Backend("onnx", "float32"), True, ("float32",)),
        (Backend("onnx", "int8"), True, ("int8",)),
    ],
)
def test_one_export_serves_the_precisions_of_its_library(
    monkeypatch: pytest.MonkeyPatch, backend: Backend, knows: bool, dtypes: tuple[str, ...]
) -> None:
    monkeypatch.setattr(module, "openvino_knows", lambda capability: knows and capability == "BF16")
    assert module._dtypes(backend) == dtypes


@pytest.mark.parametrize("overflows", [False, True])
def test_eight_bits_that_overflow_are_made_of_seven(
    request_: Exporting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, overflows: bool
) -> None:
    """On a processor that adds products in 16 bits; what is written down is of the file that stays."""
    texts = [*module.queries(), *module.documents()]  # short ones and long ones
    embeddings = np.eye(2, dtype=np.float32)[[0] * len(texts)]
    made, asked = list[bool](), list[Any]()

    def quantise(exported: Path, model: Path, *, reduced: bool = False) -> None:
        made.append(reduced)
        model.write_bytes(b"seven" if reduced else b"eight")

    def encode(texts: Any) -> np.ndarray:
        asked.append(texts)
        return -embeddings if overflows and not made[-1] else embeddings

    tokenizer = SimpleNamespace(
        backend_tokenizer=SimpleNamespace(to_str=lambda: "{}"), pad_token_id=7, eos_token_id=9
    )
    own = SimpleNamespace(
        model=SimpleNamespace(tokenizer=tokenizer, prompts={"query": "q: ", "document": ""}),
        identity=SimpleNamespace(to_dict=dict),
        encode_documents=lambda texts: embeddings,
    )
    monkeypatch.setattr(module, "_WholeModel", lambda *_: SimpleNamespace(inputs=(), has_states=False))
    monkeypatch.setattr(module, "position_limit", lambda model: 512)
    monkeypatch.setattr(module, "_quantise", quantise)
    monkeypatch.setattr(module, "open_export", lambda *_: SimpleNamespace(encode_documents=encode))
    request = replace(request_, load=lambda: own)  # type: ignore[arg-type, return-value]
    folder = tmp_path / "folder"
    folder.mkdir()
    record = module._write(request, Backend("onnx", "int8"), folder)
    assert made == ([False, True] if overflows else [False])
    assert checked_record(folder) == record
    assert record["agreement"]["int8"]["agrees"]
    assert (record["padding"], record["prompts"]) == (7, {"query": "q: "})
    assert asked == [texts] * len(made)

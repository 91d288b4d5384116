"""What has to be there before an export begins, and what becomes of its agreement."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.encoder.backends import Backend
from dsearch.encoder.exported import making as module
from dsearch.encoder.exported.making import ensure_exported, exported
from dsearch.encoder.exported.request import Exporting
from dsearch.encoder.weights import Weights
from dsearch.errors import EncoderUnavailable, MissingExtra

ONNX, INT8 = Backend("onnx", "float32"), Backend("onnx", "int8")


def record(agrees: bool = True, dtype: str = "float32") -> dict[str, Any]:
    return {"agreement": {dtype: {"agrees": agrees, "mean": 0.5, "least": 0.25}}}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Records of a cache, and what is done with it."""
    seen = SimpleNamespace(records={}, steps=[])
    request = Exporting("model", Weights(tmp_path, "", "a" * 64), None, tmp_path, lambda: None)  # type: ignore[arg-type, return-value]

    def require(backend: Backend, *, exporting: bool = False) -> None:
        seen.steps.append(f"require {backend}{' to export' if exporting else ''}")

    def export(given: Any, backend: Backend, folder: Path) -> dict[str, Any]:
        seen.steps.append(f"export {backend}")
        return seen.records.setdefault(folder, record(dtype=backend.dtype))

    def opened(given: Any, backend: Backend, folder: Path, written: Any, batch_size: int) -> Any:
        return backend, folder, written, batch_size

    monkeypatch.setattr(module, "export_folder", lambda given, backend: tmp_path / str(backend))
    monkeypatch.setattr(module, "checked_record", lambda folder: seen.records.get(folder))
    monkeypatch.setattr(module, "open_export", opened)
    monkeypatch.setattr(Backend, "require_installed", require)
    monkeypatch.setattr("dsearch.encoder.exported.export.export", export)
    seen.request, seen.folder = request, tmp_path
    return seen


def test_what_exporting_needs_is_required_before_it_begins(made: SimpleNamespace) -> None:
    ensure_exported(made.request, ONNX)
    assert made.steps == ["require onnx float32 to export", "export onnx float32"]


def test_what_is_exported_already_needs_no_tools_for_it(made: SimpleNamespace) -> None:
    made.records[made.folder / str(ONNX)] = record()
    assert exported(made.request, ONNX, batch_size=7) == (ONNX, made.folder / str(ONNX), record(), 7)
    assert exported(made.request, ONNX)[-1] == 32  # type: ignore[index]
    assert set(made.steps) == {"require onnx float32"}


def test_eight_bits_of_onnx_are_made_from_its_float_export(made: SimpleNamespace) -> None:
    exported(made.request, INT8)
    assert made.steps == [
        "require onnx int8",
        "require onnx int8 to export",
        "require onnx float32",
        "require onnx float32 to export",
        "export onnx float32",
        "export onnx int8",
    ]


def test_openvino_needs_no_other_export(made: SimpleNamespace) -> None:
    exported(made.request, Backend("openvino", "int8"))
    assert [step for step in made.steps if step.startswith("export")] == ["export openvino int8"]


def test_what_does_not_agree_or_does_not_compute_is_refused(made: SimpleNamespace) -> None:
    made.records[made.folder / str(ONNX)] = record(agrees=False)
    with pytest.raises(
        EncoderUnavailable, match=r"cosine with those of torch is 0\.5000 in the mean; use --backend"
    ):
        exported(made.request, ONNX)
    half = Backend("openvino", "bfloat16")
    made.records[made.folder / str(half)] = record()
    with pytest.raises(EncoderUnavailable, match="openvino does not compute in bfloat16 on this processor"):
        exported(made.request, half)


def test_a_missing_package_is_named_first(made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(backend: Backend, *, exporting: bool = False) -> None:
        raise MissingExtra("needs onnxruntime")

    monkeypatch.setattr(Backend, "require_installed", missing)
    with pytest.raises(MissingExtra):
        exported(made.request, ONNX)
    assert made.steps == []

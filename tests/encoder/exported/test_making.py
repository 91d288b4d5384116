"""What has to be there before an export begins, and what becomes of its agreement."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.encoder.exported import making as module
from dsearch.encoder.exported.making import ensure_exported, exported
from dsearch.encoder.exported.request import Exporting
from dsearch.encoder.weights import Weights
from dsearch.errors import EncoderUnavailable, MissingExtra


def record(agrees: bool = True) -> dict[str, Any]:
    return {"agreement": {"float32": {"agrees": agrees, "mean": 0.5, "least": 0.25}}}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Records of a cache, and what is done with it."""
    seen = SimpleNamespace(record=None, steps=[])
    seen.request = Exporting("model", Weights(tmp_path, "", "a" * 64), None, tmp_path, lambda: None)  # type: ignore[arg-type, return-value]

    def export(given: Any, folder: Path) -> dict[str, Any]:
        seen.steps.append("export")
        return record()

    def opened(given: Any, dtype: str, folder: Path, written: Any, batch_size: int) -> Any:
        return dtype, folder, written, batch_size

    seen.folder = tmp_path / "folder"
    monkeypatch.setattr(module, "export_folder", lambda given: seen.folder)
    monkeypatch.setattr(module, "checked_record", lambda folder: seen.record)
    monkeypatch.setattr(module, "open_export", opened)
    monkeypatch.setattr(module, "require_openvino", lambda: seen.steps.append("require"))
    monkeypatch.setattr("dsearch.encoder.exported.export.export", export)
    return seen


def test_openvino_is_required_before_an_export_begins(made: SimpleNamespace) -> None:
    ensure_exported(made.request)
    assert made.steps == ["require", "export"]


def test_what_is_exported_already_is_opened(made: SimpleNamespace) -> None:
    made.record = record()
    assert exported(made.request, "float32", batch_size=7) == ("float32", made.folder, record(), 7)
    assert exported(made.request, "float32")[-1] == 32  # type: ignore[index]
    assert set(made.steps) == {"require"}


def test_what_does_not_agree_or_does_not_compute_is_refused(made: SimpleNamespace) -> None:
    made.record = record(agrees=False)
    with pytest.raises(
        EncoderUnavailable, match=r"cosine with those of torch is 0\.5000 in the mean; use --backend"
    ):
        exported(made.request, "float32")
    made.record = record()
    with pytest.raises(EncoderUnavailable, match="openvino does not compute in bfloat16 on this processor"):
        exported(made.request, "bfloat16")


def test_a_missing_package_is_named_first(made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingExtra("needs openvino")

    monkeypatch.setattr(module, "require_openvino", missing)
    with pytest.raises(MissingExtra):
        exported(made.request, "float32")
    assert made.steps == []

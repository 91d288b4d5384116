"""What an earlier export is taken for: by its worst text, for its model alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsearch.encoder.automatic import outcome as module
from dsearch.encoder.automatic.outcome import ExportOutcome, outcome, record_problem
from dsearch.encoder.exported.request import Exporting
from dsearch.encoder.weights import Weights


def request(folder: Path, digest: str = "a") -> Exporting:
    return Exporting("model", Weights(folder, "", digest * 64), None, folder, lambda: None)  # type: ignore[arg-type, return-value]


def measured(least: float, mean: float) -> dict[str, Any]:
    return {"least": least, "mean": mean, "agrees": True}


def test_an_export_is_used_by_its_worst_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = {"float32": measured(0.9999, 1.0), "bfloat16": measured(0.9998, 1.0)}
    monkeypatch.setattr(module, "agreement_of", lambda *given: agreement)
    monkeypatch.setattr(module, "best_dtype", lambda name: "bfloat16")
    assert outcome(request(tmp_path)) == ExportOutcome("float32")
    refused = outcome(request(tmp_path), "bfloat16")
    assert refused.dtype is None
    assert "the least cosine of openvino with torch is 0.99980, and 0.9999" in str(refused.problem)
    agreement["bfloat16"] = measured(0.9999, 0.9999)
    assert outcome(request(tmp_path)) == ExportOutcome("bfloat16")


def test_a_problem_is_of_one_model(tmp_path: Path) -> None:
    own = request(tmp_path)
    assert outcome(own) == ExportOutcome()
    record_problem(own, "no fast tokenizer")
    assert outcome(own) == ExportOutcome(problem="no fast tokenizer")
    assert outcome(request(tmp_path, "b")) == ExportOutcome()
    assert len(list(tmp_path.iterdir())) == 1
    record_problem(request(tmp_path / "nowhere"), "x")  # no effect where nothing can be written

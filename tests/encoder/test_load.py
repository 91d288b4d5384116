"""Which encoder is loaded for which back end, precision and device, by loaders of a few lines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.encoder import load as module
from dsearch.encoder.compiled import Exporting
from dsearch.encoder.encoder import check_device
from dsearch.encoder.load import ensure_exported, exported, load_encoder
from dsearch.encoder.weights import Weights
from dsearch.errors import EncoderUnavailable, InvalidRequest, MissingExtra


@pytest.fixture
def loaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What is loaded, with its options."""
    seen = SimpleNamespace(steps=[], installed=True, cache=tmp_path)

    def by_torch(name: str, **options: Any) -> str:
        seen.steps.append(("torch", name, options))
        return f"torch {options['dtype']}"

    def exported(request: Any, dtype: str, *, batch_size: int) -> str:
        seen.steps.append(("exported", dtype, request.max_tokens, request.cache, batch_size))
        return f"exported {dtype}"

    def automatic(request: Any, load_torch: Any, dtype: str | None, batch_size: int, tell: Any) -> str:
        seen.steps.append(("automatic", dtype, request.max_tokens, batch_size))
        return f"automatic beside {load_torch()}"

    monkeypatch.setattr(module, "by_torch", by_torch)
    monkeypatch.setattr(module, "exported", exported)
    monkeypatch.setattr(module, "load_automatic", automatic)
    monkeypatch.setattr(module, "openvino_installed", lambda: seen.installed)
    monkeypatch.setattr(module, "require_openvino", lambda: None)
    monkeypatch.setattr(module, "find_weights", lambda name: Weights(tmp_path, "", "a" * 64))
    monkeypatch.setattr("dsearch.encoder.encoder.check_device", lambda device: None)
    return seen


def test_torch_in_single_precision_is_the_default(loaders: SimpleNamespace) -> None:
    assert load_encoder("some") == "torch float32"
    options = {"dtype": "float32", "device": "cpu", "max_tokens": None, "batch_size": 32}
    assert loaders.steps == [("torch", "some", options)]
    given: dict[str, Any] = {"device": "cuda", "max_tokens": 64, "batch_size": 8}
    assert load_encoder("some", dtype="bfloat16", **given) == "torch bfloat16"
    assert loaders.steps[-1] == ("torch", "some", {"dtype": "bfloat16", **given})
    load_encoder("some", device="cuda:0")
    assert loaders.steps[-1] == ("torch", "some", {**options, "device": "cuda:0", "batch_size": 256})


def test_a_back_end_is_taken_with_all_options(loaders: SimpleNamespace) -> None:
    cache = loaders.cache
    assert load_encoder("some", backend="torch") == "torch float32"
    options: dict[str, Any] = {"cache": cache, "max_tokens": 64, "batch_size": 8}
    assert load_encoder("some", backend="openvino", dtype="bfloat16", **options) == "exported bfloat16"
    assert loaders.steps[-1] == ("exported", "bfloat16", 64, cache, 8)
    with pytest.raises(
        InvalidRequest, match="backend='openvino' needs a folder for what is exported; give cache"
    ):
        load_encoder("some", backend="openvino")
    with pytest.raises(
        InvalidRequest, match="backend='openvino' runs on the CPU, not on cuda; use --backend torch"
    ):
        load_encoder("some", backend="openvino", device="cuda", cache=cache)


def test_only_an_encoder_of_the_processor_changes_by_itself(loaders: SimpleNamespace) -> None:
    """An exported model is of the processor."""
    on_card = load_encoder("some", backend="auto", device="cuda", cache=loaders.cache)
    assert on_card == "torch float32"
    beside = load_encoder("some", backend="auto", cache=loaders.cache, max_tokens=64, batch_size=8)
    assert beside == "automatic beside torch float32"
    assert ("automatic", None, 64, 8) in loaders.steps


def test_auto_is_torch_without_a_cache_or_openvino(loaders: SimpleNamespace) -> None:
    assert load_encoder("some", backend="auto") == "torch float32"
    loaders.installed = False
    assert load_encoder("some", backend="auto", cache=loaders.cache) == "torch float32"


def test_auto_keeps_a_precision(loaders: SimpleNamespace) -> None:
    assert load_encoder("some", backend="auto", dtype="bfloat16", cache=loaders.cache) == (
        "automatic beside torch bfloat16"
    )
    assert ("automatic", "bfloat16", None, 32) in loaders.steps


@pytest.mark.parametrize(
    ("device", "asks", "message"),
    [
        ("cuda", "cuda.is_available", "device='cuda'; torch sees no CUDA GPU here: use cpu, or see dsearch"),
        ("cuda:1", "cuda.is_available", "device='cuda:1'; torch sees no CUDA GPU here: use cpu"),
        ("mps", "backends.mps.is_available", "device='mps'; torch sees no Apple GPU here: use cpu"),
    ],
)
def test_a_missing_gpu_is_named_and_one_that_is_there_is_taken(
    monkeypatch: pytest.MonkeyPatch, device: str, asks: str, message: str
) -> None:
    monkeypatch.setattr(f"torch.{asks}", lambda: False)
    with pytest.raises(InvalidRequest, match=message):
        check_device(device)
    monkeypatch.setattr(f"torch.{asks}", lambda: True)
    check_device(device)


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
    monkeypatch.setattr("dsearch.encoder.export.export", export)
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

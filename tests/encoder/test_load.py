"""Which encoder is loaded for which back end, precision and device, by loaders of a few lines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.encoder import load as module
from dsearch.encoder.backends import Backend
from dsearch.encoder.encoder import check_device
from dsearch.encoder.load import BackendChoice, load_encoder
from dsearch.encoder.weights import Weights
from dsearch.errors import EncoderUnavailable, InvalidRequest


@pytest.fixture
def loaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What is loaded, with its options; `choice` is what was measured, `prefers` the library of `auto`."""
    seen = SimpleNamespace(steps=[], choice=None, prefers="openvino", fails=False, cache=tmp_path)

    def by_torch(name: str, **options: Any) -> str:
        seen.steps.append(("torch", name, options))
        return f"torch {options['dtype']}"

    def exported(request: Any, backend: Backend, *, batch_size: int) -> str:
        if seen.fails:
            raise EncoderUnavailable("it does not agree")
        seen.steps.append(("exported", str(backend), request.max_tokens, request.cache, batch_size))
        return f"exported {backend}"

    def automatic(request: Any, load_torch: Any, dtype: str | None, batch_size: int, tell: Any) -> str:
        seen.steps.append(("automatic", dtype, request.max_tokens, batch_size))
        return f"automatic beside {load_torch()}"

    monkeypatch.setattr(module, "by_torch", by_torch)
    monkeypatch.setattr(module, "exported", exported)
    monkeypatch.setattr(module, "load_automatic", automatic)
    monkeypatch.setattr(module, "preferred", lambda: seen.prefers)
    monkeypatch.setattr(module, "installed", lambda: ("openvino",))
    monkeypatch.setattr(module, "known_in", lambda cache: seen.choice is not None)
    monkeypatch.setattr(module, "read_choice", lambda cache, sha256, dtype: seen.choice)
    monkeypatch.setattr(module, "find_weights", lambda name: Weights(tmp_path, "", "a" * 64))
    monkeypatch.setattr(Backend, "require_installed", lambda backend, **options: None)
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
    assert load_encoder("some", backend="onnx", dtype="int8", **options) == "exported onnx int8"
    assert loaders.steps[-1] == ("exported", "onnx int8", 64, cache, 8)
    with pytest.raises(
        InvalidRequest, match="backend='onnx' needs a folder for what is exported; give cache"
    ):
        load_encoder("some", backend="onnx")
    with pytest.raises(
        InvalidRequest, match="backend='onnx' runs on the CPU, not on cuda; use --backend torch"
    ):
        load_encoder("some", backend="onnx", device="cuda", cache=cache)


@pytest.mark.parametrize("measured", [False, True])
def test_only_an_encoder_of_the_processor_changes_by_itself(loaders: SimpleNamespace, measured: bool) -> None:
    """An exported model, and what was measured, are of the processor."""
    if measured:
        loaders.choice = BackendChoice(Backend("onnx", "float32"), ())
    on_card = load_encoder("some", backend="auto", device="cuda", cache=loaders.cache)
    assert on_card == "torch float32"
    beside = load_encoder("some", backend="auto", cache=loaders.cache, max_tokens=64, batch_size=8)
    if measured:
        assert beside == "exported onnx float32"
    else:
        assert beside == "automatic beside torch float32"
        assert ("automatic", None, 64, 8) in loaders.steps


def test_auto_is_torch_without_a_cache_or_a_library(loaders: SimpleNamespace) -> None:
    assert load_encoder("some", backend="auto") == "torch float32"
    loaders.prefers = None
    assert load_encoder("some", backend="auto", cache=loaders.cache) == "torch float32"


def test_auto_keeps_a_precision(loaders: SimpleNamespace) -> None:
    assert load_encoder("some", backend="auto", dtype="bfloat16", cache=loaders.cache) == (
        "automatic beside torch bfloat16"
    )


def test_what_was_measured_counts_without_a_back_end_and_falls_back(loaders: SimpleNamespace) -> None:
    loaders.choice = BackendChoice(Backend("onnx", "float32"), ())
    assert load_encoder("some", cache=loaders.cache) == "exported onnx float32"
    assert load_encoder("some", cache=loaders.cache, device="cuda") == "torch float32"
    loaders.fails, told = True, list[str]()
    for backend in (None, "auto"):
        assert load_encoder("some", backend=backend, cache=loaders.cache, tell=told.append) == "torch float32"
    assert told == ["it does not agree; the encoder runs by torch"] * 2


def test_eight_bits_are_measured_when_they_are_asked_for(
    loaders: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def choose(cache: Path, sha256: str, dtype: str | None, load: Any, tell: Any) -> BackendChoice:
        asked.append((cache, sha256, dtype))
        return BackendChoice(Backend("onnx", "int8"), ())

    monkeypatch.setattr(module, "choose", choose)
    assert load_encoder("some", backend="auto", dtype="int8", cache=loaders.cache) == "exported onnx int8"
    assert asked == [(loaders.cache, "a" * 64, "int8")]
    with pytest.raises(InvalidRequest, match="dtype='int8' is of the back ends onnx and openvino"):
        load_encoder("some", dtype="int8", cache=loaders.cache)
    with pytest.raises(InvalidRequest, match="dtype='int3'; use float32, bfloat16 or int8"):
        load_encoder("some", dtype="int3")


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

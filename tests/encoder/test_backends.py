"""OpenVINO in place of torch: the same embeddings, whole exports or none, torch where it cannot be had."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from support.exported_encoders import DTYPES, TEXTS, TinyHome, need_openvino
from support.tiny_encoder import WORDS

from dsearch.encoder import (
    Encoder,
    EncoderTraining,
    LearningEncoder,
    export,
    load_encoder,
    tuned,
    tuned_identity,
)
from dsearch.encoder import export_cache as exports
from dsearch.encoder.backends import Outputs, Run, Tokens, best_dtype, openvino_knows
from dsearch.encoder.compiled import CompiledEncoder
from dsearch.errors import EncoderUnavailable, InvalidRequest, MissingExtra


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> TinyHome:
    need_openvino()
    return TinyHome(tmp_path_factory.mktemp("backends"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_agrees_with_torch(home: TinyHome, dtype: str) -> None:
    if dtype == "bfloat16" and not openvino_knows("BF16"):
        with pytest.raises(EncoderUnavailable, match="does not compute in bfloat16 on this processor"):
            home.load("openvino", dtype)
        return
    exact, other = home.load("torch"), home.load("openvino", dtype)
    assert (other.identity.backend, other.identity.dtype) == ("openvino", dtype)
    for encode in ("encode_queries", "encode_documents"):
        expected, found = getattr(exact, encode)(TEXTS), getattr(other, encode)(TEXTS)
        near = (expected * found).sum(1)
        assert near.min() > {"float32": 0.99999, "bfloat16": 0.999}[dtype]
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert other.encode_documents([]).shape == (0, 16)


def word_counts(encoder: Encoder | CompiledEncoder) -> list[int]:
    """The counts of `TEXTS` by the tokens of words, and the marks."""
    (marks,), words = encoder.token_counts([""]), encoder.word_tokens(TEXTS)
    assert words is not None
    return [len(tokens) + marks for tokens in words]


def test_it_counts_tokens_and_batches_as_torch_does(home: TinyHome) -> None:
    exact, other = home.load("torch", batch_size=2), home.load("openvino", "float32", batch_size=2)
    assert isinstance(exact, Encoder)
    assert isinstance(other, CompiledEncoder)
    assert other.token_counts(TEXTS) == exact.token_counts(TEXTS) == word_counts(exact) == word_counts(other)
    many = [f"{text} {number}" for number, text in enumerate(TEXTS * 5)]
    alone = np.concatenate([other.encode_documents([text]) for text in many])
    np.testing.assert_allclose(other.encode_documents(many), alone, atol=1e-5)
    np.testing.assert_allclose(exact.encode_documents(many), alone, atol=1e-5)


def test_a_shorter_window_cuts_as_torch_does(home: TinyHome) -> None:
    exact, other = home.load("torch", max_tokens=6), home.load("openvino", "float32", max_tokens=6)
    assert other.identity.max_tokens == 6
    np.testing.assert_allclose(other.encode_documents(TEXTS), exact.encode_documents(TEXTS), atol=1e-5)
    assert not np.allclose(
        other.encode_documents(TEXTS), home.load("openvino", "float32").encode_documents(TEXTS)
    )
    with pytest.raises(InvalidRequest, match=r"max_tokens=33; .* takes 1 to 32"):
        home.load("openvino", max_tokens=33)


def test_openvino_meets_few_shapes_of_texts_that_come_alone(
    home: TinyHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, ...]] = []
    session = exports.openvino_session

    def noting(model: Path, precision: str) -> Run:
        run = session(model, precision)

        def noted(tokens: Tokens, *, states: bool = False) -> Outputs:
            shapes.append(tokens["input_ids"].shape)
            return run(tokens, states=states)

        return noted

    monkeypatch.setattr(exports, "openvino_session", noting)
    exact, padded = home.load("torch"), home.load("openvino", "float32")
    shapes.clear()  # of comparing the two, if it was exported just now
    texts = [" ".join((WORDS * 3)[:count]) for count in (1, 5, 9, 18, 25)]
    alone = np.concatenate([padded.encode_queries([text]) for text in texts])
    assert shapes == [(1, 16), (1, 16), (1, 16), (1, 32), (1, 32)]
    np.testing.assert_allclose(alone, exact.encode_queries(texts), atol=1e-5)
    padded.encode_documents(texts[:2])  # padding costs more in a batch
    home.load("openvino", "float32", max_tokens=20).encode_queries(texts[-1:])  # nothing beyond the window
    assert shapes[5:] == [(2, 7), (1, 20)]


def test_openvino_computes_the_same_where_a_width_has_a_model_of_its_own(home: TinyHome) -> None:
    encoder = home.load("openvino", "float32")
    exact = home.load("torch")
    texts = [" ".join((WORDS * 3)[:count]) for count in (1, 5, 9, 18, 25)]
    expected = exact.encode_queries(texts)

    def each(_: int) -> np.ndarray:
        return np.concatenate([encoder.encode_queries([text]) for text in texts])

    with ThreadPoolExecutor(4) as threads:  # which meet the first text of each width at the same time
        for found in threads.map(each, range(8)):
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_second_start_exports_nothing(home: TinyHome, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = home.load("openvino", "float32").encode_queries(TEXTS)
    monkeypatch.setattr(export, "_write", _refuse)
    monkeypatch.setattr(Encoder, "load", _refuse)  # nor is torch's model loaded
    np.testing.assert_array_equal(home.load("openvino", "float32").encode_queries(TEXTS), expected)


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
@pytest.mark.parametrize("file", ["model.xml", "model.bin", "tokenizer.json", "export.json"])
def test_a_damaged_export_is_not_loaded_but_made_again(
    home: TinyHome,
    file: str,
    damage: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    home = home.with_empty_cache(tmp_path, monkeypatch)
    expected = home.load("openvino", "float32").encode_queries(TEXTS)
    [folder] = home.exports()
    content = (folder / file).read_bytes()
    middle = len(content) // 2
    if damage == "gone":
        (folder / file).unlink()
    elif damage == "cut":
        (folder / file).write_bytes(content[:middle])
    else:
        (folder / file).write_bytes(content[:middle] + b"\0" + content[middle + 1 :])
    with caplog.at_level(logging.WARNING):
        found = home.load("openvino", "float32").encode_queries(TEXTS)
    np.testing.assert_array_equal(found, expected)
    assert "exporting again" in caplog.text
    assert (folder / file).read_bytes() == content


def test_a_missing_extra_is_named(home: TinyHome, monkeypatch: pytest.MonkeyPatch) -> None:
    _hide_openvino(monkeypatch)
    with pytest.raises(MissingExtra, match=r"pip install 'dsearch\[openvino\]', or use --backend torch"):
        home.load("openvino", "float32")


@pytest.mark.parametrize(
    ("backend", "dtype", "device", "message"),
    [
        ("tensorflow", None, "cpu", "backend='tensorflow'; use torch, openvino or auto"),
        ("onnx", None, "cpu", "backend='onnx'; use torch, openvino or auto"),
        ("torch", "int8", "cpu", "dtype='int8'; use float32 or bfloat16"),
        ("openvino", "int8", "cpu", "dtype='int8'; use float32 or bfloat16"),
        ("auto", "int8", "cpu", "dtype='int8'; use float32 or bfloat16"),
        ("openvino", None, "toaster", "device='toaster'; use cpu"),
    ],
)
def test_bad_options(home: TinyHome, backend: str, dtype: str | None, device: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        home.load(backend, dtype, device=device)


def test_openvino_reports_to_nobody(home: TinyHome) -> None:
    home.load("openvino")
    program = """
import socket, sys
def refuse(*arguments):
    raise AssertionError(f"tried to reach {arguments}")
socket.socket.connect = socket.getaddrinfo = refuse
from pathlib import Path
from typing import Any
from dsearch.encoder import load_encoder
load_encoder(sys.argv[1], backend="openvino", cache=Path(sys.argv[2])).encode_queries(["red"])
assert "openvino" in sys.modules and sys.modules["openvino_telemetry"] is None
"""
    subprocess.run([sys.executable, "-c", program, home.encoder, str(home.cache)], check=True, timeout=120)


def test_without_a_folder_for_exports(home: TinyHome) -> None:
    with pytest.raises(InvalidRequest, match="needs a folder for what is exported"):
        load_encoder(home.encoder, backend="openvino")


def test_without_extras_auto_is_torch_and_exports_nothing(
    home: TinyHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hide_openvino(monkeypatch)
    monkeypatch.setattr("dsearch.encoder.automatic.subprocess.Popen", _refuse)
    for dtype in ("float32", "bfloat16"):
        found = load_encoder(home.encoder, backend="auto", dtype=dtype, cache=tmp_path / "cache")
        assert isinstance(found, Encoder)
        assert found.identity.dtype == dtype
    assert not (tmp_path / "cache").exists()


def test_gradients_and_training_are_torchs(home: TinyHome) -> None:
    other = home.load("openvino", "float32")
    embedded = other.embed(TEXTS[:3], "query")
    assert embedded.requires_grad
    np.testing.assert_allclose(embedded.detach().numpy(), other.encode_queries(TEXTS[:3]), atol=1e-5)
    learning = LearningEncoder(other, EncoderTraining("all"))
    with torch.no_grad():
        for parameter in learning.learning():
            parameter.add_(0.01 * torch.randn_like(parameter))
    identity = tuned_identity(other.identity, "ab" * 32)
    assert (identity.backend, identity.dtype) == ("torch", "float32")
    served = tuned(other, learning.change(), identity)
    np.testing.assert_allclose(served.encode_queries(TEXTS), learning.encode_queries(TEXTS), atol=1e-6)
    assert not np.allclose(served.encode_queries(TEXTS), other.encode_queries(TEXTS))


@pytest.mark.parametrize("knows", [True, False])
def test_bfloat16_is_for_processors_that_compute_in_it(monkeypatch: pytest.MonkeyPatch, knows: bool) -> None:
    capable = lambda capability: knows or capability != "BF16"  # noqa: E731
    monkeypatch.setattr("dsearch.encoder.backends.openvino_knows", capable)
    assert best_dtype("openvino") == ("bfloat16" if knows else "float32")
    assert best_dtype("torch") == "float32"


def _refuse(*arguments: object, **options: object) -> None:
    raise AssertionError("should not be called")


def _hide_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = importlib.util.find_spec
    hidden: Callable[..., object] = lambda name, *rest: None if name == "openvino" else whole(name, *rest)  # noqa: E731
    monkeypatch.setattr("dsearch.encoder.backends.importlib.util.find_spec", hidden)

"""Back ends beside torch: the same embeddings, whole files or none, torch where they are not to be had."""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.exported_encoders import ALL, TEXTS, TinyHome, needs
from support.tiny_encoder import WORDS

from dsearch.encoder import (
    Backend,
    Encoder,
    EncoderIdentity,
    EncoderTraining,
    LearningEncoder,
    TextEncoder,
    choice_of,
    load,
    load_encoder,
    tuned,
    tuned_identity,
)
from dsearch.encoder.automatic.agreement import agrees
from dsearch.encoder.backends import best_dtype, installed
from dsearch.encoder.exported import cache as exports
from dsearch.encoder.exported import export, making
from dsearch.encoder.exported.compiled import CompiledEncoder
from dsearch.encoder.exported.runtimes import Outputs, Run, Tokens, openvino_knows
from dsearch.errors import EncoderMismatch, EncoderUnavailable, InvalidRequest, MissingExtra


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> TinyHome:
    return TinyHome(tmp_path_factory.mktemp("backends"))


@pytest.mark.parametrize("which", ALL)
def test_it_agrees_with_torch(home: TinyHome, which: str) -> None:
    name, dtype = which.split()
    needs(name)
    if dtype == "bfloat16" and not openvino_knows("BF16"):
        with pytest.raises(EncoderUnavailable, match="does not compute in bfloat16 on this processor"):
            home.load(name, dtype)
        return
    exact, other = home.load("torch"), home.load(name, dtype)
    assert (other.identity.backend, other.identity.dtype) == (name, dtype)
    for encode in ("encode_queries", "encode_documents"):
        expected, found = getattr(exact, encode)(TEXTS), getattr(other, encode)(TEXTS)
        near = (expected * found).sum(1)
        assert near.min() > {"float32": 0.99999, "bfloat16": 0.999, "int8": 0.98}[dtype]
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert other.encode_documents([]).shape == (0, 16)


def word_counts(encoder: Encoder | CompiledEncoder) -> list[int]:
    """The counts of `TEXTS` by the tokens of words, and the marks."""
    (marks,), words = encoder.token_counts([""]), encoder.word_tokens(TEXTS)
    assert words is not None
    return [len(tokens) + marks for tokens in words]


def test_it_counts_tokens_and_batches_as_torch_does(home: TinyHome) -> None:
    needs("onnx")
    exact, other = home.load("torch", batch_size=2), home.load("onnx", batch_size=2)
    assert isinstance(exact, Encoder)
    assert isinstance(other, CompiledEncoder)
    assert other.token_counts(TEXTS) == exact.token_counts(TEXTS) == word_counts(exact) == word_counts(other)
    many = [f"{text} {number}" for number, text in enumerate(TEXTS * 5)]
    alone = np.concatenate([other.encode_documents([text]) for text in many])
    np.testing.assert_allclose(other.encode_documents(many), alone, atol=1e-5)
    np.testing.assert_allclose(exact.encode_documents(many), alone, atol=1e-5)


def test_a_shorter_window_cuts_as_torch_does(home: TinyHome) -> None:
    needs("onnx")
    exact, other = home.load("torch", max_tokens=6), home.load("onnx", max_tokens=6)
    assert other.identity.max_tokens == 6
    np.testing.assert_allclose(other.encode_documents(TEXTS), exact.encode_documents(TEXTS), atol=1e-5)
    assert not np.allclose(other.encode_documents(TEXTS), home.load("onnx").encode_documents(TEXTS))
    with pytest.raises(InvalidRequest, match=r"max_tokens=33; .* takes 1 to 32"):
        home.load("onnx", max_tokens=33)


def test_openvino_meets_few_shapes_of_texts_that_come_alone(
    home: TinyHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("openvino")
    shapes: list[tuple[int, ...]] = []
    session = exports._session  # pyright: ignore[reportPrivateUsage]

    def noting(backend: Backend, folder: Path) -> Run:
        run = session(backend, folder)

        def noted(tokens: Tokens, *, states: bool = False) -> Outputs:
            shapes.append(tokens["input_ids"].shape)
            return run(tokens, states=states)

        return noted

    monkeypatch.setattr(exports, "_session", noting)
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
    needs("openvino")
    encoder = home.load("openvino", "float32")
    exact = home.load("torch")
    texts = [" ".join((WORDS * 3)[:count]) for count in (1, 5, 9, 18, 25)]
    expected = exact.encode_queries(texts)

    def each(_: int) -> np.ndarray:
        return np.concatenate([encoder.encode_queries([text]) for text in texts])

    with ThreadPoolExecutor(4) as threads:  # which meet the first text of each width at the same time
        for found in threads.map(each, range(8)):
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_openvino_keeps_one_model_for_each_width_of_a_lone_text(
    home: TinyHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("openvino")
    import openvino

    home.load("openvino", "float32")  # exported and compared by now
    made: list[str] = []
    compile_model = openvino.Core.compile_model

    def noting(self: Any, model: Any, *args: Any) -> Any:
        made.append(str(model.inputs[0].get_partial_shape()))
        return compile_model(self, model, *args)

    monkeypatch.setattr(openvino.Core, "compile_model", noting)
    encoder = home.load("openvino", "float32")
    assert made == []
    for text in ("search", "engine", " ".join((WORDS * 3)[:18]), "search"):
        encoder.encode_queries([text])
    assert made == ["[1,16]", "[1,32]"]
    encoder.encode_queries(["search", "engine"])
    encoder.encode_queries(["engine", "search"])
    assert made == ["[1,16]", "[1,32]", "[?,?]"]


def test_a_second_start_exports_nothing(home: TinyHome, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("onnx")
    expected = home.load("onnx").encode_queries(TEXTS)
    monkeypatch.setattr(export, "_write", _refuse)
    monkeypatch.setattr(Encoder, "load", _refuse)  # nor is torch's model loaded
    np.testing.assert_array_equal(home.load("onnx").encode_queries(TEXTS), expected)


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
@pytest.mark.parametrize("file", ["model.onnx", "tokenizer.json", "export.json"])
def test_a_damaged_export_is_not_loaded_but_made_again(
    home: TinyHome, file: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    needs("onnx")
    expected = home.load("onnx", "int8").encode_queries(TEXTS)
    [folder] = home.exports("onnx-int8")
    content = (folder / file).read_bytes()
    middle = len(content) // 2
    if damage == "gone":
        (folder / file).unlink()
    elif damage == "cut":
        (folder / file).write_bytes(content[:middle])
    else:
        (folder / file).write_bytes(content[:middle] + b"\0" + content[middle + 1 :])
    with caplog.at_level(logging.WARNING):
        found = home.load("onnx", "int8").encode_queries(TEXTS)
    np.testing.assert_array_equal(found, expected)
    assert "exporting again" in caplog.text
    assert (folder / file).stat().st_size == len(content)


def test_an_export_that_fails_leaves_nothing(home: TinyHome, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("onnx")
    home.load("onnx", "int8")
    [folder] = home.exports("onnx-int8")
    shutil.rmtree(folder)
    before = sorted(home.cache.iterdir())

    def full(*arguments: object, **options: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_digest", full)
    with pytest.raises(EncoderUnavailable, match=r"No space left.*make room.*--backend torch"):
        home.load("onnx", "int8")
    monkeypatch.undo()
    assert sorted(home.cache.iterdir()) == before
    home.load("onnx", "int8")
    assert home.exports("onnx-int8") == [folder]


def test_what_does_not_agree_is_refused(
    home: TinyHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("onnx")
    wrong = home.with_empty_cache(tmp_path, monkeypatch)
    session = exports.onnx_session
    monkeypatch.setattr(exports, "onnx_session", _rolled(session))
    with pytest.raises(EncoderUnavailable, match=r"onnx float32 gives embeddings whose cosine"):
        wrong.load("onnx")
    monkeypatch.undo()
    with pytest.raises(EncoderUnavailable):  # what was found out is remembered
        wrong.load("onnx")


def test_agreement_is_the_worst_text_of_the_exact_and_the_mean_of_int8() -> None:
    near = np.array([1, 1, 1, 0.95], np.float32)
    assert not agrees("float32", near)
    assert not agrees("bfloat16", near)
    assert agrees("int8", near)
    assert not agrees("int8", near - np.float32(0.02))
    assert not agrees("int8", np.array([1, np.nan], np.float32))


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_a_missing_extra_is_named(home: TinyHome, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    _hide(monkeypatch, "onnxruntime", "openvino")
    with pytest.raises(MissingExtra, match=rf"pip install 'dsearch\[{name}\]', or use --backend torch"):
        home.load(name, "float32")


def test_quantising_for_openvino_names_nncf(home: TinyHome, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("openvino")
    _hide(monkeypatch, "nncf")
    with pytest.raises(MissingExtra, match="pip install nncf"):
        home.load("openvino", "int8")


@pytest.mark.parametrize(
    ("backend", "dtype", "device", "message"),
    [
        ("tensorflow", None, "cpu", "backend='tensorflow'; use torch, onnx, openvino or auto"),
        ("torch", "int8", "cpu", "dtype='int8'; back end torch takes float32 or bfloat16"),
        ("onnx", "bfloat16", "cpu", "dtype='bfloat16'; back end onnx takes float32 or int8"),
        (None, "int3", "cpu", "dtype='int3'; use float32, bfloat16 or int8"),
        ("auto", "int3", "cpu", "dtype='int3'"),
        (None, "int8", "cpu", "dtype='int8' is of the back ends onnx and openvino"),
        ("onnx", None, "toaster", "device='toaster'; use cpu"),
    ],
)
def test_bad_options(
    home: TinyHome, backend: str | None, dtype: str | None, device: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        home.load(backend, dtype, device=device)


def test_openvino_reports_to_nobody(home: TinyHome) -> None:
    needs("openvino")
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
        load_encoder(home.encoder, backend="onnx")


# ---- measured


def test_nothing_is_measured_unless_asked_for(home: TinyHome, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert isinstance(load_encoder(home.encoder, cache=cache), Encoder)
    assert not cache.exists()
    assert choice_of(home.encoder, cache) is None


def test_without_extras_auto_is_torch_and_exports_nothing(
    home: TinyHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hide(monkeypatch, "onnxruntime", "openvino")
    monkeypatch.setattr("dsearch.encoder.automatic.preparation.subprocess.Popen", _refuse)
    for dtype in ("float32", "bfloat16"):
        found = load_encoder(home.encoder, backend="auto", dtype=dtype, cache=tmp_path / "cache")
        assert isinstance(found, Encoder)
        assert found.identity.dtype == dtype
    assert not (tmp_path / "cache").exists()


def test_a_measurement_holds_for_later_starts(
    home: TinyHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("onnx")
    told: list[str] = []
    _pretend(monkeypatch, {"onnx float32": 3.0})
    cache = home.cache
    measured = choice_of(home.encoder, cache, measure=True, tell=told.append)
    assert measured is not None
    assert measured.backend == Backend("onnx", "float32")
    assert "the encoder runs by onnx float32 from now on" in told
    monkeypatch.setattr("dsearch.encoder.load.choose", _refuse)
    for backend in ("auto", None):
        assert load_encoder(home.encoder, backend=backend, cache=cache).identity.backend == "onnx"
    assert load_encoder(home.encoder, backend="torch", cache=cache).identity.backend == "torch"
    assert choice_of(home.encoder, cache) == measured
    assert {f"{one.name} {one.dtype}" for one in measured.measured} >= {"torch float32", "onnx float32"}
    for file in cache.glob("choice-*.json"):
        file.unlink()


def test_torch_stays_where_others_hardly_gain(home: TinyHome, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("onnx")
    _pretend(monkeypatch, {"onnx float32": 1.05})
    found = choice_of(home.encoder, home.cache, measure=True)
    assert found is not None
    assert found.backend == Backend("torch", "float32")
    for file in home.cache.glob("choice-*.json"):
        file.unlink()


def test_measuring_goes_on_without_a_back_end_that_fails(
    home: TinyHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("onnx")
    needs("openvino")
    _pretend(monkeypatch, {"onnx float32": 9.0, "openvino float32": 2.0, "openvino bfloat16": 1.5})

    def crash(model: Path) -> Run:
        raise RuntimeError("illegal instruction")

    monkeypatch.setattr(exports, "onnx_session", crash)
    measured = choice_of(home.encoder, home.cache, measure=True)
    assert measured is not None
    assert measured.backend.name == "openvino"
    [broken] = [one for one in measured.measured if one.name == "onnx"]
    assert "illegal instruction" in str(broken.problem)
    for file in home.cache.glob("choice-*.json"):
        file.unlink()


def test_a_choice_of_what_is_gone_falls_back(home: TinyHome, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("onnx")
    _pretend(monkeypatch, {"onnx float32": 3.0})
    choice_of(home.encoder, home.cache, measure=True)
    monkeypatch.setattr(exports, "checked_record", lambda folder: None)
    monkeypatch.setattr(making, "checked_record", lambda folder: None)
    monkeypatch.setattr(export, "export", _unavailable)
    told: list[str] = []
    found = home.load(None, tell=told.append)
    assert found.identity.backend == "torch"
    assert "the encoder runs by torch" in told[-1]
    for file in home.cache.glob("choice-*.json"):
        file.write_text(json.dumps({"backend": {"name": "onnx"}}))  # damaged: as if there were none
    assert home.load(None).identity.backend == "torch"
    for file in home.cache.glob("choice-*.json"):
        file.unlink()


# ---- identity and training


def test_close_ones_may_be_mixed_and_int8_may_not() -> None:
    exact = EncoderIdentity("mini", "", "0" * 64, "mean", 256, "torch", "float32", 384)
    for name, dtype in (("onnx", "float32"), ("openvino", "bfloat16"), ("torch", "bfloat16")):
        exact.require_same(replace(exact, backend=name, dtype=dtype), "papers")
        replace(exact, backend=name, dtype=dtype).require_same(exact, "papers")
    quantised = replace(exact, backend="onnx", dtype="int8")
    quantised.require_same(quantised, "papers")
    with pytest.raises(EncoderMismatch, match="'float32' there, 'int8' here"):
        exact.require_same(quantised, "papers")
    with pytest.raises(EncoderMismatch, match=r"--encoder mini --backend onnx, with DSEARCH_DTYPE=int8"):
        quantised.require_same(exact, "papers")
    with pytest.raises(EncoderMismatch):
        quantised.require_same(replace(quantised, backend="openvino"), "papers")


def test_gradients_and_training_are_torchs(home: TinyHome) -> None:
    needs("onnx")
    other = home.load("onnx")
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


def test_a_library_counts_as_installed_if_it_can_export(monkeypatch: pytest.MonkeyPatch) -> None:
    present = {"onnxruntime", "openvino"}
    find = lambda name: name if name in present else None  # noqa: E731
    monkeypatch.setattr("dsearch.encoder.backends.importlib.util", SimpleNamespace(find_spec=find))
    assert installed() == ["openvino"]
    present |= {"onnx", "onnxscript"}
    assert installed() == ["onnx", "openvino"]


def test_what_quantises_is_needed_for_an_export_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _hide(monkeypatch, "openvino", "nncf")
    eight = Backend("openvino", "int8")
    assert (eight.missing(), eight.missing(exporting=True)) == (["openvino"], ["openvino", "nncf"])
    assert Backend("openvino", "float32").missing(exporting=True) == ["openvino"]


@pytest.mark.parametrize("knows", [True, False])
def test_bfloat16_is_for_processors_that_compute_in_it(monkeypatch: pytest.MonkeyPatch, knows: bool) -> None:
    needs("openvino")
    capable = lambda capability: knows or capability != "BF16"  # noqa: E731
    monkeypatch.setattr("dsearch.encoder.exported.runtimes.openvino_knows", capable)
    assert best_dtype("openvino") == ("bfloat16" if knows else "float32")
    assert best_dtype("onnx") == best_dtype("torch") == "float32"
    assert (Backend("torch", "bfloat16") in load.candidates()) == knows
    assert Backend("torch", "bfloat16") in load.candidates("bfloat16")


def _refuse(*arguments: object, **options: object) -> None:
    raise AssertionError("should not be called")


def _unavailable(*arguments: object) -> None:
    raise EncoderUnavailable("the cache cannot be written")


def _hide(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    whole = importlib.util.find_spec
    hidden: Callable[..., object] = lambda name, *rest: None if name in packages else whole(name, *rest)  # noqa: E731
    monkeypatch.setattr("dsearch.encoder.backends.importlib.util.find_spec", hidden)


def _pretend(monkeypatch: pytest.MonkeyPatch, gains: dict[str, float]) -> None:
    """Rates as if these back ends were so much faster than torch; the texts are encoded all the same."""

    def rates(encoders: dict[Backend, TextEncoder]) -> dict[Backend, tuple[float, float]]:
        return {one: (100 * gains.get(str(one), 1.0),) * 2 for one in encoders}  # type: ignore[misc]

    monkeypatch.setattr(load, "_rates", rates)


def _rolled(session: Callable[[Path], Run]) -> Callable[[Path], Run]:
    """The numbers of each embedding out of place, as a wrong conversion may have them."""

    def made(model: Path) -> Run:
        run = session(model)

        def rolled(tokens: Tokens, *, states: bool = False) -> Outputs:
            outputs = run(tokens, states=states)
            return outputs._replace(embeddings=np.roll(outputs.embeddings, 1, axis=1))

        return rolled

    return made

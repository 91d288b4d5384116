"""Token states of exported encoders: those of torch, or torch's where they do not agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.exported_encoders import DTYPES, TEXTS, TinyHome, need_openvino

from dsearch.encoder import Encoder
from dsearch.encoder import export_cache as exports
from dsearch.encoder.backends import Outputs, Run, Tokens, openvino_knows
from dsearch.encoder.compiled import CompiledEncoder
from dsearch.encoder.weights import find_weights


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> TinyHome:
    need_openvino()
    return TinyHome(tmp_path_factory.mktemp("states"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_token_states_are_those_of_torch(home: TinyHome, dtype: str) -> None:
    if dtype == "bfloat16" and not openvino_knows("BF16"):
        pytest.skip("does not compute in bfloat16")
    exact, other = Encoder.load(home.encoder), home.load("openvino", dtype)
    assert isinstance(other, CompiledEncoder)
    assert other.states_problem is None
    other._load_reference = _refuse  # type: ignore[assignment]
    for role in ("query", "document"):
        expected = exact.encode_tokens(TEXTS, role)[1]
        embeddings, tokens = other.encode_tokens(TEXTS, role)
        np.testing.assert_allclose(embeddings, other.encode_documents(TEXTS), atol=1e-6)
        assert [of.states.shape for of in tokens] == [of.states.shape for of in expected]
        for one, of in zip(expected, tokens, strict=True):
            np.testing.assert_array_equal(one.spans, of.spans)
            near = (one.states * of.states).sum(1)
            assert near.size == 0 or near.min() > {"float32": 0.99999, "bfloat16": 0.999}[dtype]
    assert other.encode_tokens([])[0].shape == (0, 16)


def test_token_states_leave_a_prompt_out(home: TinyHome, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, other = Encoder.load(home.encoder), home.load("openvino", "float32")
    assert isinstance(other, CompiledEncoder)
    exact.model.prompts = {"query": "question: "}
    monkeypatch.setattr(other, "prompts", {"query": "question: "})
    (expected,), (tokens,) = (
        exact.encode_tokens(TEXTS[:1], "query")[1],
        other.encode_tokens(TEXTS[:1], "query")[1],
    )
    np.testing.assert_array_equal(tokens.spans, expected.spans)
    assert tokens.spans[0].tolist() == [0, 8]
    np.testing.assert_allclose(tokens.states, expected.states, atol=1e-5)


@pytest.mark.parametrize("which", ["torch", "openvino"])
def test_what_is_encoded_and_counted_begins_with_the_prompt(
    home: TinyHome, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """Each role has its own prefix; passages are cut by counts of documents."""
    plain = Encoder.load(home.encoder)
    prompts = {"query": "question: ", "document": "number text: "}
    if which == "torch":
        encoder = Encoder.load(home.encoder)
        encoder.model.prompts = prompts
    else:
        encoder = home.load("openvino", "float32")
        monkeypatch.setattr(encoder, "prompts", prompts)
    as_documents = [prompts["document"] + text for text in TEXTS]
    as_queries = [prompts["query"] + text for text in TEXTS]
    assert encoder.token_counts(TEXTS) == plain.token_counts(as_documents) != plain.token_counts(TEXTS)
    np.testing.assert_allclose(
        encoder.encode_documents(TEXTS), plain.encode_documents(as_documents), atol=1e-5
    )
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), plain.encode_queries(as_queries), atol=1e-5)


@pytest.mark.parametrize("damage", ["states", "places"])
def test_token_states_that_do_not_agree_come_from_torch(
    home: TinyHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    other = home.with_empty_cache(tmp_path, monkeypatch)
    if damage == "states":
        monkeypatch.setattr(exports, "openvino_session", _noisy(exports.openvino_session))
    else:
        monkeypatch.setattr("dsearch.encoder.compiled.inside_text", lambda spans, *_: spans[:, 0] >= 1)
    encoder = other.load("openvino", "float32")
    assert isinstance(encoder, CompiledEncoder)
    assert str(encoder.states_problem).startswith(
        "token states of openvino float32 agree with torch's to a cosine of"
    )
    expected = Encoder.load(other.encoder).encode_tokens(TEXTS)
    embeddings, tokens = encoder.encode_tokens(TEXTS)
    np.testing.assert_allclose(embeddings, expected[0], atol=1e-6)
    np.testing.assert_allclose(tokens[0].states, expected[1][0].states, atol=1e-6)
    [folder] = other.exports()
    record = json.loads((folder / "export.json").read_text())
    assert record["agreement"]["float32"]["agrees"]  # embeddings are the export's


def test_an_export_of_an_earlier_format_is_not_read(home: TinyHome, monkeypatch: pytest.MonkeyPatch) -> None:
    request = exports.Exporting(home.encoder, find_weights(home.encoder), None, home.cache, _refuse)  # type: ignore[arg-type]
    present = exports.export_folder(request)
    monkeypatch.setattr(exports, "FORMAT", 1)
    assert exports.export_folder(request) != present


def _refuse(*arguments: object, **options: object) -> None:
    raise AssertionError("should not be called")


def _noisy(session: Callable[[Path, str], Run]) -> Callable[[Path, str], Run]:
    """Token states that are not quite those of torch."""

    def made(model: Path, precision: str) -> Run:
        run = session(model, precision)

        def noisy(tokens: Tokens, *, states: bool = False) -> Outputs:
            outputs = run(tokens, states=states)
            if outputs.states is None:
                return outputs
            noise = np.random.default_rng(0).normal(size=outputs.states.shape)
            return outputs._replace(states=(outputs.states + 0.05 * noise).astype(np.float32))

        return noisy

    return made

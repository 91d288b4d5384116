"""An export appears whole or not at all, and what a killed one left goes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsearch.encoder import export as module
from dsearch.encoder.compiled import Exporting
from dsearch.encoder.export import agrees, cosines, documents, export, queries, states_agreement
from dsearch.encoder.export_cache import checked_record
from dsearch.encoder.tokens import TextTokens
from dsearch.encoder.weights import Weights
from dsearch.errors import EncoderUnavailable, InvalidRequest


@pytest.fixture
def request_(tmp_path: Path) -> Exporting:
    return Exporting("model", Weights(tmp_path, "", "a" * 64), None, tmp_path / "cache", lambda: None)  # type: ignore[arg-type, return-value]


def written(request: Exporting, folder: Path) -> dict[str, Any]:
    assert folder.name == f".folder.{os.getpid()}"
    (folder / "model.xml").write_bytes(b"new")
    return {"by": request.name}


def test_what_a_killed_export_left_is_removed(request_: Exporting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_write", written)
    cache = request_.cache
    for name in (".folder.1", f".folder.{os.getpid()}", ".other.1", "folder"):
        (cache / name).mkdir(parents=True)
        (cache / name / "model.xml").write_bytes(b"old")
    assert export(request_, cache / "folder") == {"by": "model"}
    left = {path.name for path in cache.iterdir() if path.is_dir()}
    assert left == {"folder", ".other.1"}  # another export may be at work there
    assert (cache / "folder" / "model.xml").read_bytes() == b"new"


def test_an_export_that_fails_leaves_what_was_there(
    request_: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(request: Exporting, folder: Path) -> dict[str, Any]:
        (folder / "model.xml").write_bytes(b"half")
        raise InvalidRequest("no fast tokenizer")

    monkeypatch.setattr(module, "_write", failing)
    with pytest.raises(InvalidRequest, match="no fast tokenizer"):
        export(request_, request_.cache / "folder")
    assert [path.name for path in request_.cache.iterdir() if path.is_dir()] == []


def test_what_another_process_exported_meanwhile_is_taken(
    request_: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_write", lambda *given: pytest.fail("exported twice"))
    monkeypatch.setattr(module, "checked_record", lambda folder: {"by": "another"})
    assert export(request_, request_.cache / "folder") == {"by": "another"}


def test_a_cache_that_cannot_be_written_is_named(
    request_: Exporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write", full)
    with pytest.raises(EncoderUnavailable) as raised:
        export(request_, request_.cache / "folder")
    message = str(raised.value)
    assert message.startswith("openvino needs the encoder as a file of its own, which cannot be written to ")
    assert "No space left on device" in message
    assert message.endswith("make room or let this user write there, or use --backend torch")


@pytest.mark.parametrize(("knows", "dtypes"), [(True, ["float32", "bfloat16"]), (False, ["float32"])])
def test_one_export_serves_the_precisions_of_the_processor(
    request_: Exporting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, knows: bool, dtypes: list[str]
) -> None:
    texts = [*module.queries(), *module.documents()]  # short ones and long ones
    embeddings = np.eye(2, dtype=np.float32)[[0] * len(texts)]
    opened, asked = list[str](), list[Any]()

    def open_export(request: Exporting, dtype: str, folder: Path, record: Any) -> Any:
        opened.append(dtype)
        return SimpleNamespace(encode_documents=lambda texts: asked.append(texts) or embeddings)

    tokenizer = SimpleNamespace(
        backend_tokenizer=SimpleNamespace(to_str=lambda: "{}"), pad_token_id=7, eos_token_id=9
    )
    own = SimpleNamespace(
        model=SimpleNamespace(tokenizer=tokenizer, prompts={"query": "q: ", "document": ""}),
        identity=SimpleNamespace(to_dict=dict),
        encode_documents=lambda texts: embeddings,
    )
    monkeypatch.setattr(module, "openvino_knows", lambda capability: knows and capability == "BF16")
    monkeypatch.setattr(module, "_WholeModel", lambda *_: SimpleNamespace(inputs=(), has_states=False))
    monkeypatch.setattr(module, "position_limit", lambda model: 512)
    monkeypatch.setattr(module, "_write_model", lambda whole, folder: (folder / "model.xml").touch())
    monkeypatch.setattr(module, "open_export", open_export)
    folder = tmp_path / "folder"
    folder.mkdir()
    record = module._write(replace(request_, load=lambda: own), folder)  # type: ignore[arg-type, return-value]
    assert opened == list(record["agreement"]) == dtypes
    assert all(measured["agrees"] for measured in record["agreement"].values())
    assert checked_record(folder) == record
    assert (record["padding"], record["prompts"]) == (7, {"query": "q: "})
    assert asked == [texts] * len(dtypes)


def tokens(*of: float, at: int = 0) -> TextTokens:
    """Tokens with these cosines to (1, 0)."""
    rows = np.array([[one, (1 - min(one, 1.0) ** 2) ** 0.5] for one in of], np.float32).reshape(-1, 2)
    spans = np.array([[n + at, n + 1] for n in range(len(of))], np.int64).reshape(-1, 2)
    return TextTokens(rows, spans)


def measured(*texts: TextTokens) -> dict[str, object]:
    return states_agreement([tokens(*[1.0] * len(of.states)) for of in texts], texts)


def test_embeddings_agree_in_every_text() -> None:
    assert agrees(np.array([1, 0.9991], np.float32))
    assert not agrees(np.array([1, 0.9989], np.float32))
    assert not agrees(np.array([1, np.inf], np.float32))
    assert not agrees(np.array([1, np.nan], np.float32))


def test_cosines_are_of_pairs() -> None:
    some, others = np.eye(2, 3, dtype=np.float32), np.array([[0, 1, 0], [0, 0.5, 0]], np.float32)
    assert cosines(some, others).tolist() == [0.0, 0.5]


STATES = [
    ([tokens(1.0, 0.99981), tokens()], 0.99981, 0.999905, True),
    ([tokens(1.0, 0.99979)], 0.99979, 0.999895, False),  # the mean of a text
    ([tokens(0.9985, *[1.0] * 99)], 0.9985, 0.999985, False),  # a token
    ([tokens(1.0, 1.0), tokens(0.9995)], 0.9995, 0.9995, False),  # the worst text
]


@pytest.mark.parametrize(("texts", "least", "mean", "agree"), STATES)
def test_states_agree_in_tokens_and_texts(
    texts: list[TextTokens], least: float, mean: float, agree: bool
) -> None:
    found = measured(*texts)
    assert found["least"] == pytest.approx(least, abs=1e-5)
    assert found["mean"] == pytest.approx(mean, abs=1e-5)
    assert found["agrees"] is agree


def test_tokens_at_other_places_do_not_agree() -> None:
    found = states_agreement([tokens(1.0, 1.0)], [tokens(1.0, 1.0, at=1)])
    assert found == {"least": 0.0, "mean": 0.0, "agrees": False}
    with pytest.raises(ValueError, match="shorter"):
        states_agreement([tokens(1.0)], [])


def test_texts_are_of_many_lengths_and_always_the_same() -> None:
    assert len(queries()) == len(documents()) == len(set(queries())) == 40
    assert queries() is queries()
    assert all(0 < len(text) <= 200 and "\n" not in text for text in queries())
    lengths = [len(text) for text in documents()]
    assert min(lengths) < 100
    assert max(lengths) > 1500
    assert max(lengths[:16]) <= 400
    assert max(lengths[16:32]) <= 900

"""Export an encoder to a file that OpenVINO runs, by torch, into the cache (export_cache.py).

The whole function is exported, tokens to pooled vector and token states, by OpenVINO's converter. Its
embeddings and token states are compared with those of torch in float32. The texts, of all lengths, are the
docstrings of Python's own types, which exist on every machine.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor, nn

from dsearch.encoder.backends import FLOAT, HALF, OPENVINO, import_openvino, openvino_knows
from dsearch.encoder.compiled import FIELDS, Exporting
from dsearch.encoder.encoder import Encoder, position_limit, states_of
from dsearch.encoder.export_cache import FORMAT, RECORD_NAME, TOKENIZER_NAME, checked_record, open_export
from dsearch.encoder.tokens import TextTokens
from dsearch.errors import EncoderUnavailable, InvalidRequest

_CHATTY = ("root", "transformers", "sentence_transformers")


def export(request: Exporting, folder: Path) -> dict[str, Any]:
    """Export an encoder into a folder of the cache, whole or not at all; return its description.

    Raises:
        InvalidRequest: a model that cannot be exported.
        EncoderUnavailable: the cache cannot be written.
    """
    from filelock import FileLock

    try:
        request.cache.mkdir(parents=True, exist_ok=True)
        with FileLock(request.cache / f"{folder.name}.lock"):
            if (record := checked_record(folder)) is not None:
                return record  # another process did it meanwhile
            for abandoned in request.cache.glob(f".{folder.name}.*"):  # by processes that were killed
                shutil.rmtree(abandoned, ignore_errors=True)
            unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
            unfinished.mkdir()
            try:
                record = _write(request, unfinished)
                shutil.rmtree(folder, ignore_errors=True)
                unfinished.rename(folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
            return record
    except OSError as error:
        raise EncoderUnavailable(
            f"{OPENVINO} needs the encoder as a file of its own, which cannot be written to {request.cache} "
            f"({error}); make room or let this user write there, or use --backend torch"
        ) from error


def _write(request: Exporting, folder: Path) -> dict[str, Any]:
    encoder = request.load()
    whole = _WholeModel(encoder, request.name)
    try:
        with _quiet():
            _write_model(whole, folder)
    except Exception as error:  # the converter has a dozen kinds of its own
        raise InvalidRequest(
            f"encoder {request.name!r} cannot be exported for {OPENVINO} ({type(error).__name__}: "
            f"{str(error)[:300]}); use --backend torch"
        ) from error
    (folder / TOKENIZER_NAME).write_text(encoder.model.tokenizer.backend_tokenizer.to_str(), "utf-8")
    record: dict[str, Any] = {
        "format": FORMAT,
        "identity": encoder.identity.to_dict(),
        "longest": position_limit(encoder.model),
        "inputs": list(whole.inputs),
        "padding": int(encoder.model.tokenizer.pad_token_id or 0),
        "prompts": {key: text for key, text in (encoder.model.prompts or {}).items() if text},
        "files": {file.name: _digest(file) for file in sorted(folder.iterdir())},
        "agreement": {},
        "states": {},
    }
    texts = [*queries(), *documents()]
    expected, expected_tokens = encoder.encode_tokens(texts) if whole.has_states else (None, None)
    if expected is None:
        expected = encoder.encode_documents(texts)

    for dtype in (FLOAT, HALF) if openvino_knows("BF16") else (FLOAT,):
        compiled = open_export(request, dtype, folder, record)
        if expected_tokens is None:
            embeddings = compiled.encode_documents(texts)
        else:
            embeddings, tokens = compiled.exported_tokens(texts)
            record["states"][dtype] = states_agreement(expected_tokens, tokens)
        near = cosines(expected, embeddings)
        agreement = {"least": float(near.min()), "mean": float(near.mean()), "agrees": agrees(near)}
        record["agreement"][dtype] = agreement
    (folder / RECORD_NAME).write_text(json.dumps(record, indent=1), encoding="utf-8")
    return record


class _WholeModel(nn.Module):
    """Tokens to pooled vector and, where the model has them, token states; a function of tensors alone."""

    def __init__(self, encoder: Encoder, name: str):
        super().__init__()
        self.model = encoder.model
        if not getattr(self.model.tokenizer, "is_fast", False):
            raise InvalidRequest(
                f"encoder {name!r} has no fast tokenizer, which exported encoders need; use --backend torch"
            )
        prepare = getattr(self.model, "preprocess", None) or self.model.tokenize
        inputs = {
            key: value for key, value in prepare(["a", "two words"]).items() if isinstance(value, Tensor)
        }
        if unknown := inputs.keys() - FIELDS.keys():
            raise InvalidRequest(
                f"encoder {name!r} takes {', '.join(sorted(unknown))}, which exported encoders do not have; "
                "use --backend torch"
            )
        self.inputs = tuple(inputs)
        self.example = tuple(inputs.values())
        with torch.inference_mode():
            self.has_states = states_of(self.model(dict(inputs)), inputs) is not None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what `forward` returns."""
        return ("sentence", "states") if self.has_states else ("sentence",)

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        output = self.model(dict(zip(self.inputs, arrays, strict=True)))
        return tuple(output[name] for name in ("sentence_embedding", "token_embeddings")[: len(self.outputs)])


def _write_model(whole: _WholeModel, folder: Path) -> None:
    openvino = import_openvino()
    with torch.inference_mode():
        model = openvino.convert_model(whole, example_input=whole.example)
    for name, port in zip(whole.inputs, model.inputs, strict=True):
        port.get_tensor().set_names({name})
    for name, port in zip(whole.outputs, model.outputs, strict=True):
        port.get_tensor().set_names({name})
    openvino.save_model(model, str(folder / "model.xml"), compress_to_fp16=False)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _quiet() -> Iterator[None]:
    """The converter warns of what it does by design, on stdout too."""
    loud = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loud]
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        for logger in loud:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loud, levels, strict=True):
                logger.setLevel(level)


LEAST_CLOSE = 0.999  # minimum cosine of a back end whose embeddings may be mixed with those of torch
LEAST_STATES = 0.9999  # minimum of a text's mean cosine of token states; of a single token, LEAST_CLOSE


def agrees(cosines: Float32[np.ndarray, " texts"]) -> bool:
    """True if cosines with torch in float32 reach the bound."""
    return bool(np.isfinite(cosines).all() and cosines.min() >= LEAST_CLOSE)


def cosines(
    some: Float32[np.ndarray, "texts encoder_dim"], others: Float32[np.ndarray, "texts encoder_dim"]
) -> Float32[np.ndarray, " texts"]:
    """Cosines of unit embeddings, pair by pair."""
    return np.asarray((some * others).sum(1), np.float32)


def states_agreement(some: Sequence[TextTokens], others: Sequence[TextTokens]) -> dict[str, Any]:
    """Agreement of token states, as an export describes it.

    Returns:
        least: smallest cosine of a token.
        mean: smallest mean over the tokens of a text.
        agrees: True if these reach the bounds, and the tokens have the same places.
    """
    pairs = list(zip(some, others, strict=True))
    if any(not np.array_equal(first.spans, second.spans) for first, second in pairs):
        return {"least": 0.0, "mean": 0.0, "agrees": False}
    by_text = [cosines(first.states, second.states) for first, second in pairs]
    by_text = [of_text for of_text in by_text if len(of_text)]
    every = np.concatenate(by_text)
    least = float(every.min())
    mean = min(float(of_text.mean()) for of_text in by_text)
    agree = np.isfinite(every).all() and least >= LEAST_CLOSE and mean >= LEAST_STATES
    return {"least": least, "mean": mean, "agrees": bool(agree)}


@cache
def queries() -> Sequence[str]:
    """Forty short texts: first sentences."""
    sentences = dict.fromkeys(text.split(".")[0].split("\n")[0].strip()[:200] for text in _docstrings())
    return tuple(sentences)[:40]


@cache
def documents() -> Sequence[str]:
    """Forty texts, from one line to more than most windows."""
    texts = _docstrings()
    joined = [" ".join(texts[first : first + 8]) for first in range(0, len(texts) - 8, 8)]
    return tuple([text[:400] for text in texts[:16]] + [text[:900] for text in joined[:16]] + joined[16:24])


def _docstrings() -> list[str]:
    kinds = (str, bytes, list, dict, int, float, set, type, complex, memoryview)
    owners = [builtins, *kinds]
    texts = [getattr(member, "__doc__", None) for owner in owners for member in vars(owner).values()]
    return list(dict.fromkeys(text for text in texts if isinstance(text, str) and len(text) > 20))

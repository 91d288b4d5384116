"""Export an encoder to a file that another library runs, by torch, into the cache (cache.py).

The whole function is exported, tokens to pooled vector and token states, by `torch.onnx.export` or OpenVINO's
converter. int8 applies to the matrix products with weights: by onnxruntime with one scale per output (one
scale per matrix, its default, leaves a cosine of .95), or by nncf, which calibrates on texts first.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dsearch.encoder.automatic.agreement import agrees, cosines, documents, queries, states_agreement
from dsearch.encoder.backends import FLOAT, HALF, INT8, ONNX, OPENVINO, Backend
from dsearch.encoder.encoder import Encoder, position_limit
from dsearch.encoder.exported.cache import (
    FORMAT,
    RECORD_NAME,
    TOKENIZER_NAME,
    checked_record,
    export_folder,
    open_export,
)
from dsearch.encoder.exported.compiled import FIELDS
from dsearch.encoder.exported.request import Exporting
from dsearch.encoder.exported.runtimes import import_openvino, openvino_knows
from dsearch.encoder.token_batch import states_of
from dsearch.errors import EncoderUnavailable, InvalidRequest

_CHATTY = ("torch.onnx", "onnxscript", "nncf", "root", "transformers", "sentence_transformers")


def export(request: Exporting, backend: Backend, folder: Path) -> dict[str, Any]:
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
                record = _write(request, backend, unfinished)
                shutil.rmtree(folder, ignore_errors=True)
                unfinished.rename(folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
            return record
    except OSError as error:
        raise EncoderUnavailable(
            f"{backend} needs the encoder as a file of its own, which cannot be written to {request.cache} "
            f"({error}); make room or let this user write there, or use --backend torch"
        ) from error


def _write(request: Exporting, backend: Backend, folder: Path) -> dict[str, Any]:
    encoder = request.load()
    whole = _WholeModel(encoder, request.name)
    try:
        with _quiet():
            if backend == Backend(ONNX, INT8):
                _quantise(export_folder(request, Backend(ONNX, FLOAT)) / "model.onnx", folder / "model.onnx")
            elif backend.name == ONNX:
                _write_onnx(whole, folder / "model.onnx")
            else:
                _write_openvino(whole, encoder, folder, quantised=backend.dtype == INT8)
    except Exception as error:  # each converter has a dozen kinds of its own
        raise InvalidRequest(
            f"encoder {request.name!r} cannot be exported for {backend} ({type(error).__name__}: "
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

    def measure(dtype: str) -> bool:
        compiled = open_export(request, Backend(backend.name, dtype), folder, record)
        if expected_tokens is None:
            embeddings = compiled.encode_documents(texts)
        else:
            embeddings, tokens = compiled.exported_tokens(texts)
            record["states"][dtype] = states_agreement(dtype, expected_tokens, tokens)
        near = cosines(expected, embeddings)
        agreement = {"least": float(near.min()), "mean": float(near.mean()), "agrees": agrees(dtype, near)}
        record["agreement"][dtype] = agreement
        return agreement["agrees"]

    for dtype in _dtypes(backend):
        if not measure(dtype) and backend == Backend(ONNX, INT8):
            # Without VNNI a processor adds pairs of 8-bit products in 16 bits, which overflow; 7 bits do not.
            model = folder / "model.onnx"
            _quantise(export_folder(request, Backend(ONNX, FLOAT)) / "model.onnx", model, reduced=True)
            record["files"][model.name] = _digest(model)
            measure(dtype)
    (folder / RECORD_NAME).write_text(json.dumps(record, indent=1), encoding="utf-8")
    return record


def _dtypes(backend: Backend) -> tuple[str, ...]:
    """The precisions that one export serves."""
    if backend.name == OPENVINO and backend.dtype != INT8:
        return (FLOAT, HALF) if openvino_knows("BF16") else (FLOAT,)
    return (backend.dtype,)


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


def _write_onnx(whole: _WholeModel, model: Path) -> None:
    texts, tokens = torch.export.Dim("texts"), torch.export.Dim("tokens")
    torch.onnx.export(
        whole,
        whole.example,
        str(model),
        input_names=list(whole.inputs),
        output_names=list(whole.outputs),
        dynamic_shapes=(tuple({0: texts, 1: tokens} for _ in whole.inputs),),
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def _quantise(exported: Path, model: Path, *, reduced: bool = False) -> None:
    """Quantise the matrix products of an ONNX model to 8 bits, or to 7 where `reduced`."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Products alone: quantised embeddings of words, too, leave a cosine of .95.
    products = ["MatMul", "Gemm"]
    quantize_dynamic(
        exported,
        model,
        op_types_to_quantize=products,
        per_channel=True,
        reduce_range=reduced,
        weight_type=QuantType.QInt8,
    )


def _write_openvino(whole: _WholeModel, encoder: Encoder, folder: Path, *, quantised: bool) -> None:
    openvino = import_openvino()
    with torch.inference_mode():
        model = openvino.convert_model(whole, example_input=whole.example)
    for name, port in zip(whole.inputs, model.inputs, strict=True):
        port.get_tensor().set_names({name})
    for name, port in zip(whole.outputs, model.outputs, strict=True):
        port.get_tensor().set_names({name})
    if quantised:
        import nncf  # pyright: ignore[reportMissingImports]  # of no extra; see `Backend.require_installed`

        prepare = getattr(encoder.model, "preprocess", None) or encoder.model.tokenize
        prepared = [prepare([text]) for text in (*queries(), *documents())]
        arrays = [{name: np.asarray(inputs[name]) for name in whole.inputs} for inputs in prepared]
        model = nncf.quantize(model, nncf.Dataset(arrays), model_type=nncf.ModelType.TRANSFORMER)
    openvino.save_model(model, str(folder / "model.xml"), compress_to_fp16=False)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _quiet() -> Iterator[None]:
    """Converters warn of what they do by design, on stdout too."""
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

"""Export an encoder to a file that another library runs, and cache it for the next start.

    <cache>/<encoder>-<kind>-<key>/   model.onnx, or model.xml and model.bin
                                      tokenizer.json
                                      export.json: description, SHA-256 of each file, agreement with torch

The key is a digest of the weights and the versions of all libraries involved, so each combination has its own
folder. A folder appears as a whole, by one rename, and every file is checked against its digest before it is
loaded; on a mismatch it is exported again. The whole function is exported, tokens to pooled vector, by
`torch.onnx.export` or OpenVINO's converter. int8 applies to the matrix products with weights: by onnxruntime
with one scale per output (one scale per matrix, its default, leaves a cosine of .95), or by nncf, which
calibrates on texts first.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dsearch.encoder.automatic.agreement import agrees, cosines, documents, queries
from dsearch.encoder.backends import FLOAT, HALF, INT8, ONNX, OPENVINO, Backend
from dsearch.encoder.compiled import FIELDS, CompiledEncoder
from dsearch.encoder.encoder import Encoder, position_limit
from dsearch.encoder.identity import EncoderIdentity
from dsearch.encoder.runtimes import Run, import_openvino, onnx_session, openvino_knows, openvino_session
from dsearch.encoder.weights import Weights
from dsearch.errors import CorruptData, EncoderUnavailable, InvalidRequest

FORMAT = 1
_RECORD_NAME = "export.json"
_TOKENIZER_NAME = "tokenizer.json"
_CHATTY = ("torch.onnx", "onnxscript", "nncf", "root", "transformers", "sentence_transformers")
_TOOLS = {ONNX: ("onnx", "onnxscript", "onnxruntime"), OPENVINO: ("openvino", "nncf")}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Exporting:
    """Request to export an encoder.

    Attributes:
        name: the user's name of the encoder.
        weights: its files.
        max_tokens: limit above which texts are cut; None for the model's own limit. The exported model
            accepts any length.
        cache: folder of the exports.
        load: function that loads the torch encoder in float32.
    """

    name: str
    weights: Weights
    max_tokens: int | None
    cache: Path
    load: Callable[[], Encoder]


def exported(request: Exporting, backend: Backend, *, batch_size: int = 32) -> CompiledEncoder:
    """The encoder as `backend` runs it: from the cache, or exported into it first.

    Raises:
        MissingExtra: the back end is not installed.
        InvalidRequest: a model that cannot be exported.
        EncoderUnavailable: its embeddings are not those of torch, or the cache cannot be written.
    """
    backend.require_installed()
    record = ensure_exported(request, backend)
    agreement = record["agreement"].get(backend.dtype)
    if agreement is None:
        raise EncoderUnavailable(
            f"encoder {request.name!r}: {backend.name} does not compute in {backend.dtype} on this "
            "processor; use float32 or --backend torch"
        )
    if not agreement["agrees"]:
        raise EncoderUnavailable(
            f"encoder {request.name!r}: {backend} gives embeddings whose cosine with those of torch is "
            f"{agreement['mean']:.4f} in the mean; use --backend torch"
        )
    return _open(request, backend, export_folder(request, backend), record, batch_size)


def ensure_exported(request: Exporting, backend: Backend) -> dict[str, Any]:
    """Export into the cache unless that was done before; return the description of the export.

    Raises:
        As `exported`, but for embeddings that do not agree, which the description tells.
    """
    record = _checked(export_folder(request, backend))
    if record is None:
        backend.require_installed(exporting=True)
        if backend == Backend(ONNX, INT8):
            exported(request, Backend(ONNX, FLOAT))  # which is what is quantised
        record = _export(request, backend, export_folder(request, backend))
    return record


def cached_encoder(request: Exporting, backend: Backend, *, batch_size: int = 32) -> CompiledEncoder | None:
    """The encoder as `backend` runs it; None if the cache does not have it whole. Nothing is exported."""
    folder = export_folder(request, backend)
    record = _checked(folder)
    return None if record is None else _open(request, backend, folder, record, batch_size)


def agreement_of(request: Exporting, backend: Backend) -> dict[str, dict[str, Any]] | None:
    """Cosines with torch by precision, as measured on exporting; None without an export. No model is read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads((export_folder(request, backend) / _RECORD_NAME).read_text(encoding="utf-8"))
        return dict(record["agreement"])
    return None


def versions(*packages: str) -> dict[str, str]:
    """Versions of those packages that are installed."""
    installed: dict[str, str] = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def export_folder(request: Exporting, backend: Backend) -> Path:
    """Return the folder of an export in the cache; it need not exist."""
    kind = f"{backend.name}-int8" if backend.dtype == INT8 else backend.name  # precision is chosen on loading
    parts = {
        "format": FORMAT,
        "weights": request.weights.sha256,
        "versions": versions("torch", "transformers", "sentence-transformers", *_TOOLS[backend.name]),
    }
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    return request.cache / f"{_plain(Path(request.name).name)}-{kind}-{key}"


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)[:60] or "model"


def _checked(folder: Path) -> dict[str, Any] | None:
    """Description of an export if its files match their digests, else None."""
    try:
        record = json.loads((folder / _RECORD_NAME).read_text(encoding="utf-8"))
        for name, digest in record["files"].items():
            with (folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    raise CorruptData(f"{folder / name} is not what was exported")
    except FileNotFoundError as error:
        if folder.is_dir():
            _log.warning("%s is incomplete (%s); exporting again", folder, error)
        return None
    except (CorruptData, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("%s; exporting again", error)
        return None
    return record


def _open(
    request: Exporting, backend: Backend, folder: Path, record: dict[str, Any], batch_size: int = 32
) -> CompiledEncoder:
    identity = EncoderIdentity.from_dict(record["identity"])
    window = identity.max_tokens if request.max_tokens is None else request.max_tokens
    if not 1 <= window <= (record["longest"] or window):
        raise InvalidRequest(f"max_tokens={window}; {request.name} takes 1 to {record['longest']}")
    return CompiledEncoder(
        _session(backend, folder),
        (folder / _TOKENIZER_NAME).read_text(encoding="utf-8"),
        inputs=record["inputs"],
        padding=record["padding"],
        prompts=record["prompts"],
        identity=replace(
            identity, name=request.name, max_tokens=window, backend=backend.name, dtype=backend.dtype
        ),
        reference=request.load,
        batch_size=batch_size,
        few_shapes=backend.name == OPENVINO,
    )


def _session(backend: Backend, folder: Path) -> Run:
    if backend.name == ONNX:
        return onnx_session(folder / "model.onnx")
    return openvino_session(folder / "model.xml", "bf16" if backend.dtype == HALF else "f32")


def _export(request: Exporting, backend: Backend, folder: Path) -> dict[str, Any]:
    """Export into `folder`, whole or not at all; what it says of itself."""
    from filelock import FileLock

    try:
        request.cache.mkdir(parents=True, exist_ok=True)
        with FileLock(request.cache / f"{folder.name}.lock"):
            if (record := _checked(folder)) is not None:
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
    (folder / _TOKENIZER_NAME).write_text(encoder.model.tokenizer.backend_tokenizer.to_str(), "utf-8")
    record: dict[str, Any] = {
        "format": FORMAT,
        "identity": encoder.identity.to_dict(),
        "longest": position_limit(encoder.model),
        "inputs": list(whole.inputs),
        "padding": int(encoder.model.tokenizer.pad_token_id or 0),
        "prompts": {key: text for key, text in (encoder.model.prompts or {}).items() if text},
        "files": {file.name: _digest(file) for file in sorted(folder.iterdir())},
        "agreement": {},
    }
    texts = [*queries(), *documents()]
    expected = encoder.encode_documents(texts)

    def measure(dtype: str) -> bool:
        embeddings = _open(request, Backend(backend.name, dtype), folder, record).encode_documents(texts)
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
    (folder / _RECORD_NAME).write_text(json.dumps(record, indent=1), encoding="utf-8")
    return record


def _dtypes(backend: Backend) -> tuple[str, ...]:
    """The precisions that one export serves."""
    if backend.name == OPENVINO and backend.dtype != INT8:
        return (FLOAT, HALF) if openvino_knows("BF16") else (FLOAT,)
    return (backend.dtype,)


class _WholeModel(nn.Module):
    """Tokens to pooled vector, as a function of tensors alone."""

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

    def forward(self, *arrays: Tensor) -> Tensor:
        return self.model(dict(zip(self.inputs, arrays, strict=True)))["sentence_embedding"]


def _write_onnx(whole: _WholeModel, model: Path) -> None:
    texts, tokens = torch.export.Dim("texts"), torch.export.Dim("tokens")
    torch.onnx.export(
        whole,
        whole.example,
        str(model),
        input_names=list(whole.inputs),
        output_names=["sentence"],
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

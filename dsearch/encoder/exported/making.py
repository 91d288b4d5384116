"""`exported`: an encoder as a back end runs it, from the cache, or exported into it first.

torch is loaded only where there is something to export.
"""

from __future__ import annotations

from typing import Any

from dsearch.encoder.backends import FLOAT, INT8, ONNX, Backend
from dsearch.encoder.exported.cache import checked_record, export_folder, open_export
from dsearch.encoder.exported.compiled import CompiledEncoder
from dsearch.encoder.exported.request import Exporting
from dsearch.encoder.text_encoder import CPU_BATCH
from dsearch.errors import EncoderUnavailable


def exported(request: Exporting, backend: Backend, *, batch_size: int = CPU_BATCH) -> CompiledEncoder:
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
    return open_export(request, backend, export_folder(request, backend), record, batch_size)


def ensure_exported(request: Exporting, backend: Backend) -> dict[str, Any]:
    """Export into the cache unless that was done before; return the description of the export.

    Raises:
        As `exported`, but for embeddings that do not agree, which the description tells.
    """
    record = checked_record(export_folder(request, backend))
    if record is not None:
        return record
    backend.require_installed(exporting=True)
    if backend == Backend(ONNX, INT8):
        exported(request, Backend(ONNX, FLOAT))  # which is what is quantised
    from dsearch.encoder.exported.export import export  # torch

    return export(request, backend, export_folder(request, backend))

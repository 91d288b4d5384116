"""`exported`: an encoder as OpenVINO runs it, from the cache, or exported into it first.

torch is loaded only where there is something to export.
"""

from __future__ import annotations

from typing import Any

from dsearch.encoder.backends import OPENVINO, Backend, require_openvino
from dsearch.encoder.exported.cache import checked_record, export_folder, open_export
from dsearch.encoder.exported.compiled import CompiledEncoder
from dsearch.encoder.exported.request import Exporting
from dsearch.encoder.text_encoder import CPU_BATCH
from dsearch.errors import EncoderUnavailable


def exported(request: Exporting, dtype: str, *, batch_size: int = CPU_BATCH) -> CompiledEncoder:
    """The encoder as OpenVINO runs it: from the cache, or exported into it first.

    Raises:
        MissingExtra: OpenVINO is not installed.
        InvalidRequest: a model that cannot be exported.
        EncoderUnavailable: its embeddings are not those of torch, or the cache cannot be written.
    """
    require_openvino()
    record = ensure_exported(request)
    agreement = record["agreement"].get(dtype)
    if agreement is None:
        raise EncoderUnavailable(
            f"encoder {request.name!r}: {OPENVINO} does not compute in {dtype} on this processor; use "
            "float32 or --backend torch"
        )
    if not agreement["agrees"]:
        raise EncoderUnavailable(
            f"encoder {request.name!r}: {Backend(OPENVINO, dtype)} gives embeddings whose cosine with those "
            f"of torch is {agreement['mean']:.4f} in the mean; use --backend torch"
        )
    return open_export(request, dtype, export_folder(request), record, batch_size)


def ensure_exported(request: Exporting) -> dict[str, Any]:
    """Export into the cache unless that was done before; return the description of the export.

    Raises:
        As `exported`, but for embeddings that do not agree, which the description tells.
    """
    folder = export_folder(request)
    record = checked_record(folder)
    if record is not None:
        return record
    require_openvino()
    from dsearch.encoder.exported.export import export  # torch

    return export(request, folder)

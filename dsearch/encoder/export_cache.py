"""Exported encoders in the cache: found by their key, checked, opened.

    <cache>/<encoder>-openvino-<key>/   model.xml and model.bin
                                        tokenizer.json
                                        export.json: description, SHA-256 of each file, agreement with torch

The key is a digest of the format, the model's weights and settings, and the versions of all libraries, so
each combination has its own folder. A folder appears as a whole, by one rename, and every file is checked
against its digest before it is loaded; on a mismatch it is exported again (load.py).

A model has two outputs, the embedding and the token states; each is used only if it agrees with torch's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dsearch.encoder.backends import HALF, OPENVINO, openvino_session
from dsearch.encoder.compiled import CompiledEncoder, Exporting, ExportOrigin
from dsearch.encoder.text_encoder import CPU_BATCH, EncoderIdentity, require_tokens
from dsearch.errors import CorruptData

FORMAT = 2  # 1: without token states
RECORD_NAME = "export.json"
TOKENIZER_NAME = "tokenizer.json"
_LIBRARIES = ("torch", "transformers", "sentence-transformers", "openvino")

_log = logging.getLogger(__name__)


def cached_encoder(request: Exporting, dtype: str, *, batch_size: int = CPU_BATCH) -> CompiledEncoder | None:
    """The exported encoder; None if the cache does not have it whole. Nothing is exported."""
    folder = export_folder(request)
    record = checked_record(folder)
    return None if record is None else open_export(request, dtype, folder, record, batch_size)


def agreement_of(request: Exporting) -> dict[str, dict[str, Any]] | None:
    """Cosines with torch by precision, as measured on exporting; None without an export. No model is read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads((export_folder(request) / RECORD_NAME).read_text(encoding="utf-8"))
        return dict(record["agreement"])
    return None


def states_problem_of(request: Exporting, dtype: str) -> str | None:
    """`states_problem` of the export in the cache; None without an export. No model is read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads((export_folder(request) / RECORD_NAME).read_text(encoding="utf-8"))
        return states_problem(record, dtype)
    return None


def export_folder(request: Exporting) -> Path:
    """Return the folder of an export in the cache; it need not exist. Precision is chosen on loading."""
    parts = {
        "format": FORMAT,
        "weights": request.weights.sha256,
        "settings": request.weights.settings_sha256,
        "versions": _versions(),
    }
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    return request.cache / f"{_plain(Path(request.name).name)}-{OPENVINO}-{key}"


def _versions() -> dict[str, str]:
    """Versions of the libraries that an export depends on, of those that are installed."""
    installed: dict[str, str] = {}
    for package in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)[:60] or "model"


def checked_record(folder: Path) -> dict[str, Any] | None:
    """Description of an export if its files match their digests, else None."""
    try:
        record = json.loads((folder / RECORD_NAME).read_text(encoding="utf-8"))
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


def open_export(
    request: Exporting, dtype: str, folder: Path, record: dict[str, Any], batch_size: int = CPU_BATCH
) -> CompiledEncoder:
    """The exported encoder in a folder.

    Raises:
        InvalidRequest: a limit of tokens above the model's.
    """
    identity = EncoderIdentity.from_dict(record["identity"])
    window = identity.max_tokens if request.max_tokens is None else request.max_tokens
    require_tokens(window, record["longest"], request.name)
    encoder = CompiledEncoder(
        openvino_session(folder / "model.xml", "bf16" if dtype == HALF else "f32"),
        (folder / TOKENIZER_NAME).read_text(encoding="utf-8"),
        inputs=record["inputs"],
        padding=record["padding"],
        prompts=record["prompts"],
        identity=replace(identity, name=request.name, max_tokens=window, backend=OPENVINO, dtype=dtype),
        reference=request.load,
        batch_size=batch_size,
        states_problem=states_problem(record, dtype),
    )
    encoder.origin = ExportOrigin(request, dtype, batch_size)
    return encoder


def states_problem(record: dict[str, Any], dtype: str) -> str | None:
    """Reason why token states come from torch; None where the exported ones agree."""
    measured = record["states"].get(dtype)
    if measured is None:
        return "the exported encoder has no state for each token"
    if measured["agrees"]:
        return None
    return (
        f"token states of {OPENVINO} {dtype} agree with torch's to a cosine of {measured['mean']:.5f} "
        f"in the mean of a text and {measured['least']:.5f} of a token, too little"
    )

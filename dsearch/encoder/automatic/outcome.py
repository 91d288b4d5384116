"""ExportOutcome of an earlier export on this machine: the precision that `auto` may use, or why it uses none.

    <cache>/<export>/export.json       cosines with torch, by precision
    <cache>/<export>.problem.json      reason why there is no export

Both are named by a digest of weights, settings and all versions, so an update of a library tries again.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from dsearch.encoder.backends import FLOAT, HALF, OPENVINO, best_dtype
from dsearch.encoder.exported.cache import agreement_of, export_folder
from dsearch.encoder.exported.request import Exporting

LEAST_COSINE = 0.9999  # of a back end that nobody chose; a chosen one needs `agreement.LEAST_CLOSE`


@dataclass(frozen=True, slots=True)
class ExportOutcome:
    """Result of looking into the cache; without both members nothing was exported yet.

    Attributes:
        dtype: precision in which embeddings agree with those of torch.
        problem: reason why torch stays.
    """

    dtype: str | None = None
    problem: str | None = None


def outcome(request: Exporting, dtype: str | None = None) -> ExportOutcome:
    """Look up what an export has given; no model is read.

    Args:
        request: the encoder.
        dtype: required precision; when None, bfloat16 where processor and agreement allow it, else float32.
    """
    agreement = agreement_of(request)
    if agreement is None:
        return ExportOutcome(problem=_recorded(request))
    wanted = [dtype] if dtype is not None else [HALF, FLOAT] if HALF in agreement else [FLOAT]
    least = 0.0
    for kind in wanted:
        cosine = float(agreement.get(kind, {}).get("least", 0.0))
        least = max(least, cosine)
        # A cache may have come from another machine: the processor of this one has a say too.
        if cosine >= LEAST_COSINE and (kind != HALF or best_dtype(OPENVINO) == HALF):
            return ExportOutcome(kind)
    return ExportOutcome(
        problem=f"the least cosine of {OPENVINO} with torch is {least:.5f}, and {LEAST_COSINE} is required"
    )


def record_problem(request: Exporting, problem: str) -> None:
    """Keep the reason, so that later processes do not try again; no effect where nothing can be written."""
    file = _problem_file(request)
    with contextlib.suppress(OSError):
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        unfinished.write_text(json.dumps({"problem": problem}), encoding="utf-8")
        unfinished.replace(file)


def _recorded(request: Exporting) -> str | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(_problem_file(request).read_text(encoding="utf-8"))["problem"])
    return None


def _problem_file(request: Exporting) -> Path:
    folder = export_folder(request)
    return folder.with_name(f"{folder.name}.problem.json")

"""Confidence of first hits: evidence of rankings, and calibrations of a collection's versions.

Calibrations stand in a model's record, and in `calibrations.json` beside it. Training writes the former, with
the version. The file has those of v0 and later ones, fitted by `dsearch index` and `dsearch evaluate`; an
entry on judgements, or any entry where the record has none, goes first. The file is derived: without it, or
with a damaged one, answers have no confidence.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from dsearch.attention.arrays import Array, best_first, gather, inference, numbers_of, on_device_of
from dsearch.attention.retrieval.fixed_head import HeadFormulas
from dsearch.attention.retrieval.kernel import Weighing
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.snapshot import NONE
from dsearch.errors import CorruptData, ModelNotFound
from dsearch.evaluation.confidence import (
    LIKELY,
    POSSIBLE,
    Calibration,
    Rows,
    evidence_rows,
)
from dsearch.index.durable import sync_file, sync_folder
from dsearch.store import ModelRecord, Store
from dsearch.types import Confidence, Verdict

FILE_NAME = "calibrations.json"
RECORDED = "confidence"  # member of a model's record
_UNTRAINED = "v0"
_FORMAT = 1

_log = logging.getLogger(__name__)


class Calibrations:
    """Calibrations by version, read again when the file has changed.

    Args:
        store: the collection's.
    """

    def __init__(self, store: Store):
        self._store = store
        self._path = store.path / FILE_NAME
        self._cached: dict[str, Calibration | None] = {}
        self._read_at: tuple[int, int] | None = None
        self._writing = threading.Lock()

    def of(self, version: str) -> Calibration | None:
        """Return the calibration of a version; None without one."""
        present = self._identity()
        if present != self._read_at:
            self._cached, self._read_at = {}, present
        if version not in self._cached:
            self._cached[version] = self._stored(version)
        return self._cached[version]

    def keep(self, version: str, calibration: Calibration) -> None:
        """Write the calibration of a version durably.

        Raises:
            OSError: the disk.
        """
        with self._writing:
            entries = {**self._entries(), version: calibration.to_dict()}
            unfinished = self._path.with_name(f".{FILE_NAME}.{os.getpid()}.writing")
            unfinished.write_text(json.dumps({"format": _FORMAT, "versions": entries}))
            sync_file(unfinished)
            unfinished.replace(self._path)
            sync_folder(self._path.parent)
            self._read_at = None

    def _stored(self, version: str) -> Calibration | None:
        recorded: Any = None
        record: ModelRecord | None = None
        if version != _UNTRAINED:
            try:
                record = self._store.model(version)
                recorded = record.record.get(RECORDED)
            except ModelNotFound:
                return None
        entry = self._entries().get(version)
        if recorded is not None and (entry is None or entry.get("source") != "judgements"):
            entry = recorded
        if entry is None:
            parent = None if record is None or record.record.get("scope") != "remember" else record.parent
            return None if parent is None else self.of(parent)
        try:
            return Calibration.from_dict(entry)
        except CorruptData as error:
            _log.warning("%s, %s: %s", self._store.name, version, error)
            return None

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    def _entries(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self._path.read_text())
            versions: Any = content["versions"] if content["format"] == _FORMAT else {}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s: %s; answers have no confidence", self._path, error)
            return {}
        return cast("dict[str, Any]", versions) if isinstance(versions, dict) else {}


CANDIDATES = 100  # the legs together propose more of them


def evidence_of_rankings(
    output: SearchOutput, head: HeadFormulas, temperature: float | Float[Array, ""]
) -> Rows:
    """Compute the evidence of each query of a hybrid search; of the first stage, which it is fitted to."""
    if output.second is not None:
        output = _of_first_stage(output, head, temperature)
    with inference():
        mixture = head.mixture_of(output.folded)[..., None]
        dense, keyword = (output.dense * mixture).sum(1), (output.keyword * mixture).sum(1)
    return evidence_rows(
        _numbers(output.scores)[:, :CANDIDATES],
        _numbers(dense)[:, :CANDIDATES],
        _numbers(keyword)[:, :CANDIDATES],
        _numbers(output.weights)[:, :CANDIDATES],
        (output.positions != NONE)[:, :CANDIDATES],
    )


def _of_first_stage(
    output: SearchOutput, head: HeadFormulas, temperature: float | Float[Array, ""]
) -> SearchOutput:
    """Scores and weights as without the second stage, in that order."""
    mask = on_device_of(output.positions != NONE, output.dense)
    weighing = Weighing(head.heads, head.mixture_of(output.folded), temperature)
    scores = weighing.scores(output.first_raw, mask)
    weights = weighing.weights(output.first_raw, mask).mixed
    order = best_first(scores)
    along = order[:, None]
    return output._replace(
        scores=gather(scores, order, 1),
        weights=gather(weights, order, 1),
        dense=gather(output.dense, along, 2),
        keyword=gather(output.keyword, along, 2),
        positions=np.take_along_axis(output.positions, numbers_of(order), 1),
        second=None,
        reranked=None,
    )


def _numbers(numbers: Array) -> np.ndarray:
    return numbers_of(numbers).astype(np.float64)


def confidences(
    output: SearchOutput,
    head: HeadFormulas,
    temperature: float | Float[Array, ""],
    calibration: Calibration,
) -> list[Confidence]:
    """Estimate, for each query, whether its first hit is right."""
    estimates = calibration.estimates(evidence_of_rankings(output, head, temperature))
    judged = calibration.source == "judgements"
    return [
        Confidence(
            verdict=_verdict(estimate.fits, estimate.right),
            probability=estimate.right if judged else None,
            fitted_on=calibration.source,
            queries=calibration.queries,
            floor=calibration.floor,
        )
        for estimate in estimates
    ]


def _verdict(fits: bool, right: float) -> Verdict:
    if not fits:
        return "nothing fits"
    return "likely" if right >= LIKELY else "possible" if right >= POSSIBLE else "unlikely"

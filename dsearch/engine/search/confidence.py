"""Evidence of rankings, and the confidence of their first hits by a version's calibration."""

from __future__ import annotations

import numpy as np

from dsearch.attention.arrays import Array, best_first, gather, inference, numbers_of, on_device_of
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.ranking.ranker import Ranker
from dsearch.engine.snapshot.snapshot import NONE
from dsearch.evaluation.confidence import (
    LIKELY,
    POSSIBLE,
    Calibration,
    Rows,
    evidence_rows,
)
from dsearch.types import Confidence, Verdict

CANDIDATES = 100  # the legs together propose more of them


def evidence_of_rankings(output: SearchOutput, layer: Ranker) -> Rows:
    """Compute the evidence of each query of a hybrid search; of the first stage, which it is fitted to."""
    if output.second is not None:
        output = _of_first_stage(output, layer)
    with inference():
        mixture = layer.head.mixture_of(output.folded)[..., None]
        dense, keyword = (output.dense * mixture).sum(1), (output.keyword * mixture).sum(1)
    null = output.null_weight
    return evidence_rows(
        _numbers(output.scores)[:, :CANDIDATES],
        _numbers(dense)[:, :CANDIDATES],
        _numbers(keyword)[:, :CANDIDATES],
        _numbers(output.weights)[:, :CANDIDATES],
        (output.positions != NONE)[:, :CANDIDATES],
        None if null is None else _numbers(null),
    )


def _of_first_stage(output: SearchOutput, layer: Ranker) -> SearchOutput:
    """Scores and weights as without the second stage, in that order."""
    mask = on_device_of(output.positions != NONE, output.dense)
    scores = layer.weighing_of(output.folded).scores(output.first_raw, mask)
    weights = layer.weighing_of(output.folded).weighed(output.first_raw, mask).mixed
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


def confidences(output: SearchOutput, layer: Ranker, calibration: Calibration) -> list[Confidence]:
    """Estimate, for each query, whether its first hit is right."""
    estimates = calibration.estimates(evidence_of_rankings(output, layer), output.near_evidence)
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

"""Evidence of rankings, and the confidence of their first hits by a version's calibration."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.snapshot.snapshot import NONE
from dsearch.evaluation.confidence import (
    LIKELY,
    POSSIBLE,
    Calibration,
    Rows,
    evidence_rows,
)
from dsearch.types import Confidence, Verdict

CANDIDATES = 100  # a larger page has more of them: the evidence is that of a usual search


def evidence_of_rankings(output: SearchOutput, layer: SearchLayer) -> Rows:
    """Compute the evidence of each query of a hybrid search; of the first stage, which it is fitted to."""
    if output.second is not None:
        output = _of_first_stage(output, layer)
    with torch.inference_mode():
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


def _of_first_stage(output: SearchOutput, layer: SearchLayer) -> SearchOutput:
    """Scores and weights as without the second stage, in that order."""
    mask = torch.as_tensor(output.positions != NONE)
    scores = layer.weighing_of(output.folded).scores(output.first_raw, mask)
    weights = layer.weighing_of(output.folded).weighed(output.first_raw, mask).mixed
    order = scores.sort(dim=1, descending=True, stable=True).indices
    along = order[:, None].expand_as(output.dense)
    return output._replace(
        scores=scores.gather(1, order),
        weights=weights.gather(1, order),
        dense=output.dense.gather(2, along),
        keyword=output.keyword.gather(2, along),
        positions=np.take_along_axis(output.positions, order.numpy(), 1),
        second=None,
        reranked=None,
    )


def _numbers(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def confidences(output: SearchOutput, layer: SearchLayer, calibration: Calibration) -> list[Confidence]:
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

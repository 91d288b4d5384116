"""Hard negatives: documents that stand near a query and do not answer it, as far as anybody can tell.

Most of what ranks high beside the known answer and was never judged answers, too. So a candidate counts as a
negative only where the untrained encoder scores it below `margin` times the query's best known answer
(positive-aware mining, "TopK-PercPos": Moreira et al. 2024, NV-Retriever, arXiv:2407.15831, section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float32, Int64


def mined_negatives(
    candidates: Int64[np.ndarray, "batch candidates"],
    candidate_scores: Float32[np.ndarray, "batch candidates"],
    relevant: Sequence[Int64[np.ndarray, " _"]],
    answer_scores: Float32[np.ndarray, " batch"],
    *,
    count: int,
    margin: float,
    generator: torch.Generator,
) -> list[Int64[np.ndarray, " _"]]:
    """Some negatives for each query, drawn from its candidates; fewer where fewer are left.

    Args:
        candidates: positions, of each query its own.
        candidate_scores: the untrained encoder's.
        relevant: positions of each query's known answers, which are no negatives.
        answer_scores: the untrained encoder's score of the best of those.
        count: wanted.
        margin: a candidate above `margin · answer_score` is left out.
        generator: of the draw.
    """
    found: list[np.ndarray] = []
    for row, answers in enumerate(relevant):
        allowed = ~np.isin(candidates[row], answers) & (candidate_scores[row] < margin * answer_scores[row])
        left = candidates[row][allowed]
        drawn = torch.randperm(len(left), generator=generator)[:count].numpy()
        found.append(left[drawn])
    return found

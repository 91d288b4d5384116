"""The first stage's candidates, of which some have no second stage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dsearch.engine.ranking.second_stage import FirstStage


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_candidates_that_do_not_share_count_as_none_in_both_kinds_of_arrays(kind: Any) -> None:
    scores = kind(np.array([[1.0, 2.0]], np.float32))
    first = FirstStage(np.array([[3, 4]]), scores[None], scores, scores[None], None)
    kept = first.of(np.array([[True, False]]))
    assert kept.positions.tolist() == [[3, -1]]
    assert kept.scores.tolist() == [[1.0, float("-inf")]]
    assert isinstance(kept.scores, type(scores))

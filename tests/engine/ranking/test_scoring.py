"""Values at positions."""

from __future__ import annotations

import numpy as np
import torch

from dsearch.engine.ranking.scoring import rows_at


def test_values_at_positions_are_zeros_at_padding() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    positions = np.array([[1, -1, 0]])
    assert rows_at(values, positions).tolist() == [[[3.0, 4.0], [0.0, 0.0], [1.0, 2.0]]]
    assert rows_at(values * torch.nan, positions)[0, 1].tolist() == [0.0, 0.0]
    assert rows_at(values[:0], np.array([[-1]])).tolist() == [[[0.0, 0.0]]]

"""`SecondStage`: the second stage as a module, whose γ, W, u and v learn; formulas in late_interaction.py."""

from __future__ import annotations

import torch
from torch import nn

from dsearch.attention.late_interaction import FEATURES, START_STRENGTH, RerankerIdentity, StageFormulas
from dsearch.errors import InvalidRequest


class SecondStage(StageFormulas, nn.Module):
    """γ, W, u and v as parameters.

    Args:
        dims: length of a stored token.
        strength: γ at the start.
        reranker: a model whose scores are one more feature.

    Raises:
        InvalidRequest: dims below 1.
    """

    def __init__(
        self,
        dims: int,
        strength: float = START_STRENGTH,
        reranker: RerankerIdentity | None = None,
    ):
        nn.Module.__init__(self)
        if dims < 1:
            raise InvalidRequest(f"dims={dims}; use an integer of at least 1")
        self.token_delta = nn.Parameter(torch.zeros(dims, dims))
        self.strength = nn.Parameter(torch.tensor(float(strength)))
        self.feature_weights = nn.Parameter(torch.zeros(len(FEATURES)))
        self.reranker = reranker
        self.reranker_weight = None if reranker is None else nn.Parameter(torch.zeros(()))

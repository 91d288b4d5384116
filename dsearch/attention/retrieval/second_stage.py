"""`SecondStage`: the second stage as a module, whose γ, u and v learn; formulas in late_interaction.py."""

from __future__ import annotations

import torch
from torch import nn

from dsearch.attention.late_interaction import FEATURES, START_STRENGTH, RerankerIdentity, StageFormulas


class SecondStage(StageFormulas, nn.Module):
    """γ, u and v as parameters.

    Args:
        strength: γ at the start.
        reranker: a model whose scores are one more feature.
    """

    def __init__(self, strength: float = START_STRENGTH, reranker: RerankerIdentity | None = None):
        nn.Module.__init__(self)
        self.strength = nn.Parameter(torch.tensor(float(strength)))
        self.feature_weights = nn.Parameter(torch.zeros(len(FEATURES)))
        self.reranker = reranker
        self.reranker_weight = None if reranker is None else nn.Parameter(torch.zeros(()))

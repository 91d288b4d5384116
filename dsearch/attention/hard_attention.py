"""Hard attention by sampling, trained by reinforcement learning.

Look at one document, drawn from the attention weights, and be rewarded for it. The expected reward
E = Σ_i p_i r_i is smooth in the logits though no single look is, and REINFORCE (Williams, 1992) estimates its
gradient from samples; hard attention in this form is due to Xu et al., 2015 (arXiv:1502.03044, section 4.1).

    ∇E ≈ 1/S Σ_s (r_s − b_s) ∇ log p(a_s)          b_s = mean of the other samples' rewards

The leave-one-out baseline b_s (Kool et al., 2019, "Buy 4 REINFORCE samples, get a baseline for free!") does
not depend on a_s, so the estimate stays unbiased, and rewards that all samples share cancel out of its
variance.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dsearch.attention.arrays import masked_log_softmax, temper
from dsearch.attention.scores import Score, score_named
from dsearch.errors import InvalidRequest


def sample(
    weights: Float[Tensor, "*batch candidates"], samples: int, generator: torch.Generator | None = None
) -> Int[Tensor, "*batch {samples}"]:
    """Draw places independently, each with its weight for probability; −1 where all weights are zero."""
    if weights.numel() == 0:
        return torch.full((*weights.shape[:-1], samples), -1, device=weights.device)
    rows = weights.detach().flatten(0, -2) if weights.dim() > 1 else weights.detach().unsqueeze(0)
    empty = rows.sum(-1, keepdim=True) == 0
    at = rows.device if generator is None else generator.device  # a generator draws on no other device
    drawn = torch.multinomial((rows + empty).to(at), samples, replacement=True, generator=generator)
    return drawn.to(rows.device).masked_fill(empty, -1).reshape(*weights.shape[:-1], samples)


def reinforce_loss(
    log_weights: Float[Tensor, "*batch candidates"],
    actions: Int[Tensor, "*batch samples"],
    rewards: Float[Tensor, "*batch samples"],
) -> Float[Tensor, "*batch"]:
    """A loss whose gradient is, in expectation, that of −(expected reward).

    Its value means nothing; only its gradient does.

    Args:
        log_weights: logarithm of the sampling weights, with their graph.
        actions: places drawn by `sample`; −1 contributes nothing.
        rewards: reward of each draw; treated as constants.

    Raises:
        InvalidRequest: fewer than 2 samples, which leaves none for the baseline.
    """
    samples = actions.shape[-1]
    if samples < 2:
        raise InvalidRequest(f"{samples} sample(s); the leave-one-out baseline needs 2 or more")
    rewards = rewards.detach()
    baseline = (rewards.sum(-1, keepdim=True) - rewards) / (samples - 1)
    if log_weights.shape[-1] == 0:
        return log_weights.sum(-1)
    chosen = log_weights.gather(-1, actions.clamp_min(0)).masked_fill(actions < 0, 0.0)
    return -((rewards - baseline) * chosen).mean(-1)


class HardSample(NamedTuple):
    """Several draws per query, and the log weights that `loss` needs to learn from them."""

    context: Float[Tensor, "*batch queries samples value_dim"]
    actions: Int[Tensor, "*batch queries samples"]
    log_weights: Float[Tensor, "*batch queries keys"]


class SampledHardAttention(nn.Module):
    """One-hot attention at sampled places; `attend(..., pooling="hard")` is its greedy form for serving.

    Args:
        samples: looks per query, 2 or more; the variance of the gradient falls like 1 / samples.
        score: a name in `SCORES` or a module; a module's parameters are trained through `loss`.
        temperature: divisor of the scores.
    """

    def __init__(self, samples: int = 8, score: str | Score = "scaled_dot_product", temperature: float = 1.0):
        super().__init__()
        self.samples = samples
        self.score = score_named(score) if isinstance(score, str) else score
        self.temperature = temperature

    def forward(
        self,
        queries: Float[Tensor, "*batch queries dim"],
        keys: Float[Tensor, "*batch keys key_dim"],
        values: Float[Tensor, "*batch keys value_dim"],
        mask: Bool[Tensor, ...] | None = None,
        generator: torch.Generator | None = None,
    ) -> HardSample:
        """Draw `samples` keys for every query and return their values, one each, unmixed."""
        log_weights = masked_log_softmax(temper(self.score(queries, keys), self.temperature), mask)
        actions = sample(log_weights.exp(), self.samples, generator)
        if values.shape[-2] == 0:
            return HardSample(values.new_zeros(*actions.shape, values.shape[-1]), actions, log_weights)
        places = actions.clamp_min(0).flatten(-2).unsqueeze(-1)
        looked_at = torch.take_along_dim(values, places, -2).view(*actions.shape, values.shape[-1])
        return HardSample(looked_at.masked_fill((actions < 0).unsqueeze(-1), 0.0), actions, log_weights)

    def loss(
        self, looks: HardSample, rewards: Float[Tensor, "*batch queries samples"]
    ) -> Float[Tensor, "*batch queries"]:
        """`reinforce_loss` of what `forward` drew."""
        return reinforce_loss(looks.log_weights, looks.actions, rewards)

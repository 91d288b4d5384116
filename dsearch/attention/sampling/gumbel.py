"""Sample k documents with a gradient: Gumbel top-k, straight through.

Adding Gumbel noise to logits and taking the k largest draws k places without replacement, each next one with
its softmax probability among those left (Kool et al., 2019, arXiv:1903.06059, section 2.3). That is exact
and has no gradient; the backward takes that of a relaxed k-hot vector instead (Xie & Ermon, 2019,
arXiv:1901.10517, section 3.2), as the straight-through estimator does for one-hot (Jang et al., 2017,
arXiv:1611.01144).

The gradient is biased, the less so the lower the temperature, and its variance grows as the temperature
falls; `sampled.py` has the unbiased alternative, which needs several samples and sees rewards only.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dsearch.attention.arrays import masked_softmax
from dsearch.errors import InvalidRequest


def gumbel_top_k(
    logits: Float[Tensor, "*shape"],
    k: int,
    mask: Bool[Tensor, "*#shape"] | None = None,
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*shape"]:
    """Draw k places without replacement along the last dimension.

    Args:
        logits: unnormalised log probabilities; −inf is never drawn.
        k: number of places to draw; all allowed places if there are fewer.
        mask: True where a place may be drawn.
        temperature: temperature of the relaxation in the backward pass; the draw does not depend on it.
        generator: source of the noise.

    Returns:
        Exactly 1 at the places drawn and 0 elsewhere, with the gradient of `relaxed_top_k`.

    Raises:
        InvalidRequest: k is below 1.
    """
    if k < 1:
        raise InvalidRequest(f"k={k}; use 1 or more")
    at = logits.device if generator is None else generator.device  # a generator draws on no other device
    noise = torch.empty_like(logits, device=at).exponential_(generator=generator).to(logits.device)
    perturbed = logits - noise.clamp_min(torch.finfo(logits.dtype).tiny).log()
    if mask is not None:
        perturbed = perturbed.masked_fill(~mask, -math.inf)
    chosen = perturbed.topk(min(k, logits.shape[-1]), -1).indices
    drawn = torch.zeros_like(logits).scatter(-1, chosen, 1.0).masked_fill(perturbed == -math.inf, 0.0)
    relaxed = relaxed_top_k(perturbed, k, temperature)
    return drawn + (relaxed - relaxed.detach())


def relaxed_top_k(
    logits: Float[Tensor, "*shape"], k: int, temperature: float = 1.0
) -> Float[Tensor, "*shape"]:
    """A differentiable k-hot vector: k softmaxes, each over what those before it left.

    a_1 = softmax(l / t), l ← l + log(1 − a_1), a_2 = softmax(l / t), …; the result is Σ a_i. It approaches
    the indicator of the k largest as the temperature falls.
    """
    total = torch.zeros_like(logits)
    for _ in range(min(k, logits.shape[-1])):
        step = masked_softmax(logits / temperature)
        total = total + step
        # What has all of the weight is out: the logarithm of what it left would be −∞, with no gradient.
        taken = step >= 1.0
        logits = (logits + (1.0 - step).masked_fill(taken, 1.0).log()).masked_fill(taken, -math.inf)
    return total

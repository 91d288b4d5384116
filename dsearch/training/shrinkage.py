"""A trained head as it is served: what it learned of judged documents, without as much harm to others.

    θ(s) = (1 − s) θ₀ + s θ        θ₀: before training, θ: after it, s: the share
    w(f) = f · w                   w: the keyword weight of θ(s), f: the factor

Between the two ends of a fine-tuning lie models that keep most of its gain and lose less of what was known
before: Wortsman et al. 2022, "Robust fine-tuning of zero-shot models" (arXiv:2109.01903), eq. 1. And for
training queries the projections come to know the answers, so that training trusts keywords less than queries
about other documents should: weighing keywords higher again gives those back what they lost. Held-out queries
say how much of both (selection.py); it costs rankings of them, and no further training.
"""

from __future__ import annotations

from copy import deepcopy

import torch

from dsearch.attention.head import Head

SHARES = (0.25, 0.5, 0.75, 1.0)
KEYWORD_FACTORS = (1.0, 1.3, 1.6, 2.0)


def part_of_the_way(before: Head, trained: Head, share: float) -> Head:
    """The head at `share` of the way from one to the other, which have the same shape."""
    if share == 1.0:
        return trained
    between = deepcopy(trained)
    starts = dict(before.named_parameters())
    with torch.no_grad():
        for name, parameter in between.named_parameters():
            parameter.lerp_(starts[name].to(parameter), 1.0 - share)
    return between


def reweighed(head: Head, factor: float) -> Head:
    """The head with its keyword weights times this factor."""
    if factor == 1.0:
        return head
    weighed = deepcopy(head)
    with torch.no_grad():
        weighed.keyword_weight.mul_(factor)
    return weighed

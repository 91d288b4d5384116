"""A trained head taken part of the way: what it learned of judged documents, without as much harm to others.

    θ(s) = (1 − s) θ₀ + s θ        θ₀: before training, θ: after it, s: the share

Between the two ends of a fine-tuning lie models that keep most of its gain and lose less of what was known
before: Wortsman et al. 2022, "Robust fine-tuning of zero-shot models" (arXiv:2109.01903), eq. 1. Held-out
queries say which share (selection.py); it costs a ranking of them, and no further training.
"""

from __future__ import annotations

from copy import deepcopy

import torch

from dsearch.attention.head import Head

SHARES = (0.25, 0.5, 0.75, 1.0)


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

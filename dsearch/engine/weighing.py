"""From the scores of candidates to their weights, and to the one score that hits are ordered by."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dsearch.attention import POOLINGS, mix, null_weights, temper
from dsearch.attention.head import Head
from dsearch.attention.ranking import partition_by_head, ranking_score


class Weighed(NamedTuple):
    """What weights the scores of candidates give.

    Attributes:
        by_head: each head's; zeros where there is no candidate.
        mixed: the mixture of the heads'.
        nothing: of "nothing fits"; None without a slot for it.
    """

    by_head: Float[Tensor, "batch heads candidates"]
    mixed: Float[Tensor, "batch candidates"]
    nothing: Float[Tensor, " batch"] | None


class Weighing(NamedTuple):
    """How scores are weighed. `raw` is t · l_h(d); `mask` is True where there is a candidate, and None where
    there is one everywhere, with a finite score.

    Attributes:
        head: whose mixture and null slot.
        temperature: what scores are divided by.
        pooling: "soft", "hard" or "uniform".
        slot: whether the head's slot for "nothing fits" counts, if there is one.
    """

    head: Head
    temperature: Float[Tensor, ""] | float
    pooling: str = "soft"
    slot: bool = False

    def weighed(
        self, raw: Float[Tensor, "batch heads candidates"], mask: Bool[Tensor, "batch candidates"] | None
    ) -> Weighed:
        """The weights of candidates by their scores."""
        if mask is None and self.pooling == "soft":  # as below, without a look for what is left out
            by_head = torch.softmax(raw / self.temperature, -1)
        else:
            open_ = None if mask is None else mask.unsqueeze(1)
            by_head = POOLINGS[self.pooling](temper(raw, self.temperature), open_)
        nothing = None
        if self.slot and self.head.null_slot is not None:
            there = _everywhere(raw) if mask is None else mask
            nothing = null_weights(self.head.null_slot, raw, there, self.temperature, self.head.mixture)
            by_head = by_head * (1 - nothing)[:, None, None]
        alone = self.head.heads == 1 and not torch.is_grad_enabled()  # its share is 1
        return Weighed(by_head, by_head[:, 0] if alone else mix(by_head, self.head.mixture), nothing)

    def scores(
        self, raw: Float[Tensor, "batch heads candidates"], mask: Bool[Tensor, "batch candidates"] | None
    ) -> Float[Tensor, "batch candidates"]:
        """What hits are ordered by, −inf where `mask` is False; of one head its own scores.

        For several heads ordered exactly as soft weights, but not lost where those underflow.
        """
        if self.head.heads == 1:
            return raw[:, 0] if mask is None else raw[:, 0].masked_fill(~mask, -torch.inf)
        there = _everywhere(raw) if mask is None else mask
        partition = partition_by_head(raw, there, self.temperature)
        finite = raw.masked_fill(~there[:, None], 0.0)
        scores = ranking_score(finite, partition, self.temperature, self.head.mixture)
        return scores.masked_fill(~there, -torch.inf)


def _everywhere(raw: Float[Tensor, "batch heads candidates"]) -> Bool[Tensor, "batch candidates"]:
    return torch.ones_like(raw[:, 0], dtype=torch.bool)

"""`SearchOutput`: what attention over candidates gives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int64
from torch import Tensor


class SearchOutput(NamedTuple):
    """What attention over the candidates gave; they are sorted by weight, best first, padding last.

    Attributes:
        context: Σ_d weight(q, d) v_d, the mixture of the heads' contexts.
        weights: the mixture of the heads' softmaxes; zeros where `positions` is −1.
        positions: of the snapshot; −1 = none.
        scores: the order of hits: dense + keyword with one head, else temperature · log weight + const.
        dense: q_h · k_d, or the score in its place, per head.
        keyword: w_h(q) · b(q, d), per head.
        head_weights: each head's softmax.
        folded: the queries against stored embeddings, after the last hop.
        keys: which key of each candidate each head took, the best of its passages, numbered as in
            `Snapshot.key_embeddings`; None where every candidate has but one, or `embed` gave it.
        null_weight: the weight of "nothing fits", which those of the documents leave; None without a slot.
        keyword_weights: w_h(q); None where keywords have no part.
        dense_of_all, keyword_of_all: what every position scores, where finding the candidates took that; see
            `Legs`. Without gradients.
    """

    context: Float[Tensor, "batch value_dim"]
    weights: Float[Tensor, "batch candidates"]
    positions: Int64[np.ndarray, "batch candidates"]
    scores: Float[Tensor, "batch candidates"]
    dense: Float[Tensor, "batch heads candidates"]
    keyword: Float[Tensor, "batch heads candidates"]
    head_weights: Float[Tensor, "batch heads candidates"]
    folded: Float[Tensor, "batch heads encoder_dim"]
    keys: Int64[np.ndarray, "batch heads candidates"] | None = None
    null_weight: Float[Tensor, " batch"] | None = None
    keyword_weights: Float[Tensor, "batch heads"] | None = None
    dense_of_all: Float32[np.ndarray, "batch heads positions"] | None = None
    keyword_of_all: Float32[np.ndarray, "batch positions"] | None = None

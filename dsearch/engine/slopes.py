"""Slopes: how the dense score of each candidate moves with the query state.

slope_h(c) = ∂ dense_h(c) / ∂ state         q_h(state) and the score, differentiated
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from dsearch.engine.layer import SearchLayer
from dsearch.engine.rescoring import ranks_by_inner_product
from dsearch.engine.search_output import SearchOutput
from dsearch.engine.snapshot import NONE

_AT_ONCE = 65_536  # candidates: 100 MB a head at 384 numbers


def slopes_of(
    layer: SearchLayer, states: Float[Tensor, "batch encoder_dim"], found: SearchOutput
) -> Float[Tensor, "batch heads candidates encoder_dim"]:
    """How each head's dense score of each candidate moves with the query state."""
    batch, heads, count = found.dense.shape
    pairs = batch * count
    slopes = states.new_zeros(pairs, heads, states.shape[1])
    if layer.mode != "keyword" and pairs:
        every = with_changes(layer, found, torch.as_tensor(embeddings_found(layer, found))).numpy()
        embeddings = every.transpose(0, 2, 1, 3).reshape(pairs, -1, states.shape[1])
        for start in range(0, pairs, _AT_ONCE):
            part = slice(start, min(start + _AT_ONCE, pairs))
            of_query = torch.arange(part.start, part.stop) // count
            slopes[part] = _of_pairs(layer, states[of_query], torch.as_tensor(embeddings[part]))
    slopes = slopes.reshape(batch, count, heads, -1).transpose(1, 2)
    return slopes.masked_fill(torch.as_tensor(found.positions == NONE)[:, None, :, None], 0.0)


def embeddings_found(
    layer: SearchLayer, found: SearchOutput
) -> Float32[np.ndarray, "batch any_heads candidates encoder_dim"]:
    """The embedding by which each candidate was found, by head where heads may have taken different ones."""
    if found.keys is None:
        return layer.snapshot.embeddings(found.positions)[:, None]
    return layer.snapshot.key_embeddings(found.keys)


def with_changes(
    layer: SearchLayer, found: SearchOutput, embeddings: Float[Tensor, "batch ... encoder_dim"]
) -> Float[Tensor, "batch ... encoder_dim"]:
    """What keys are computed from: embeddings, by head or not, with changes to single documents."""
    if layer.overlaid is None:
        return embeddings
    changes = layer.overlaid.at(found.positions, embeddings)
    return embeddings + (changes if embeddings.ndim == 3 else changes[:, None])


def _of_pairs(
    layer: SearchLayer,
    states: Float[Tensor, "pairs encoder_dim"],
    embeddings: Float[Tensor, "pairs any_heads encoder_dim"],
) -> Float[Tensor, "pairs heads encoder_dim"]:
    """A state of its own for each candidate: then one backward a head gives all gradients apart."""
    with torch.enable_grad():
        states = states.clone().requires_grad_()
        queries = layer.head.queries(states)
        keys = layer.head.keys(embeddings.to(states)).detach().expand_as(queries)
        if ranks_by_inner_product(layer.score):
            dense = (queries * keys).sum(-1)
        else:
            one_by_one = layer.score(queries.flatten(0, 1).unsqueeze(1), keys.flatten(0, 1).unsqueeze(1))
            dense = one_by_one.reshape(queries.shape[:2])
        if not dense.requires_grad:  # an exact match is a step: flat wherever it has a derivative
            return torch.zeros_like(queries)
        each = [
            torch.autograd.grad(dense[:, head].sum(), states, retain_graph=True)[0]
            for head in range(dense.shape[1])
        ]
    return torch.stack(each, 1)

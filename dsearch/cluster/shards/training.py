"""A shard's part in training: attention over all of its documents, and its share of the gradient."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dsearch.attention import ExactAttention, exact_attention
from dsearch.attention.arrays import keyword_part
from dsearch.cluster.wire.messages import (
    GatherRequest,
    GatherResult,
    ShardAttendRequest,
    ShardAttention,
    ShardGradients,
)
from dsearch.engine.snapshot import NONE, Snapshot
from dsearch.errors import NotInCluster

Gradient = tuple[np.ndarray, np.ndarray, np.ndarray]  # of folded queries, keyword weight and temperature


def attend(state: Snapshot, request: ShardAttendRequest) -> ShardAttention:
    """Compute context and log partition function over every document of `state`."""
    with torch.no_grad():
        partial = _exact(state, request, *_leaves(request))
    shape = request.folded.shape
    return ShardAttention(
        partial.context.reshape(shape).numpy(), partial.log_partition.reshape(shape[:2]).numpy()
    )


def attend_backward(state: Snapshot, upstream: ShardGradients) -> Gradient:
    """Compute the loss's gradients from its gradients with respect to the result of `attend`."""
    leaves = [leaf.requires_grad_() for leaf in _leaves(upstream.request)]
    with torch.enable_grad():  # a shard in the caller's process runs inside a backward pass
        partial = _exact(state, upstream.request, *leaves)
    grads = (torch.tensor(upstream.context).flatten(0, 1), torch.tensor(upstream.log_partition).flatten())
    gradients = torch.autograd.grad(
        (partial.context, partial.log_partition), leaves, grads, allow_unused=True, materialize_grads=True
    )
    folded, keyword_weight, temperature = (gradient.numpy() for gradient in gradients)
    return folded, keyword_weight, temperature


def gather(state: Snapshot, offset: int, request: GatherRequest) -> GatherResult:
    """Return embeddings and keyword scores of some documents."""
    positions = np.where(request.positions == NONE, NONE, request.positions - offset)
    keyword = np.zeros(positions.shape, np.float32)
    if request.texts is not None:
        keyword = state.weighed(request.weighting).keyword_scores(request.texts, positions)
    return GatherResult(state.embeddings(positions), keyword)


def _leaves(request: ShardAttendRequest) -> tuple[Tensor, Tensor, Tensor]:
    folded, keyword_weight = torch.tensor(request.folded), torch.tensor(request.keyword_weight)
    return folded, keyword_weight, torch.tensor(request.temperature)


def _exact(
    state: Snapshot, request: ShardAttendRequest, folded: Tensor, keyword_weight: Tensor, temperature: Tensor
) -> ExactAttention:
    if state.passages is not None:
        raise NotInCluster("documents with several passages do not train over shards; train in one process")
    bias = None
    if request.texts is not None:
        scores = state.weighed(request.weighting).all_keyword_scores(request.texts)
        bias = (keyword_part(keyword_weight, torch.tensor(scores)) / temperature).flatten(0, 1)
    return exact_attention(
        folded.flatten(0, 1), state.generation.embeddings, bias=bias, temperature=temperature
    )

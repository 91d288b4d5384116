"""A shard's part in training: attention over all of its documents, and its share of the gradient."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dsearch.attention import Exact, exact_attention
from dsearch.attention.scores import keyword_part
from dsearch.cluster.wire.messages import Gathered, Gathering, Part, ShardAttendRequest, Upstream
from dsearch.engine.snapshot.snapshot import NONE, Snapshot
from dsearch.errors import NotInCluster

Gradient = tuple[np.ndarray, np.ndarray, np.ndarray]  # of folded queries, keyword weight and temperature


def attend(state: Snapshot, asked: ShardAttendRequest) -> Part:
    """Context and log partition function over every document of `state`."""
    with torch.no_grad():
        found = _exact(state, asked, *_leaves(asked))
    shape = asked.folded.shape
    return Part(found.context.reshape(shape).numpy(), found.log_partition.reshape(shape[:2]).numpy())


def attend_backward(state: Snapshot, upstream: Upstream) -> Gradient:
    """The gradients of a loss that has those of `upstream` with respect to what `attend` gave."""
    leaves = [leaf.requires_grad_() for leaf in _leaves(upstream.asked)]
    with torch.enable_grad():  # where the shard is in the asking process, a backward is going on
        found = _exact(state, upstream.asked, *leaves)
    given = (torch.tensor(upstream.context).flatten(0, 1), torch.tensor(upstream.log_partition).flatten())
    gradients = torch.autograd.grad(
        (found.context, found.log_partition), leaves, given, allow_unused=True, materialize_grads=True
    )
    folded, keyword_weight, temperature = (gradient.numpy() for gradient in gradients)
    return folded, keyword_weight, temperature


def gather(state: Snapshot, offset: int, asked: Gathering) -> Gathered:
    """Embeddings and keyword scores of some documents."""
    positions = np.where(asked.positions == NONE, NONE, asked.positions - offset)
    keyword = np.zeros(positions.shape, np.float32)
    if asked.texts is not None:
        keyword = state.weighed(asked.weighting).keyword_scores(asked.texts, positions)
    return Gathered(state.embeddings(positions), keyword)


def _leaves(asked: ShardAttendRequest) -> tuple[Tensor, Tensor, Tensor]:
    return torch.tensor(asked.folded), torch.tensor(asked.keyword_weight), torch.tensor(asked.temperature)


def _exact(
    state: Snapshot, asked: ShardAttendRequest, folded: Tensor, keyword_weight: Tensor, temperature: Tensor
) -> Exact:
    if state.passages is not None:
        raise NotInCluster("documents with several passages do not train over shards; train in one process")
    bias = None
    if asked.texts is not None:
        scores = state.weighed(asked.weighting).all_keyword_scores(asked.texts)
        bias = (keyword_part(keyword_weight, torch.tensor(scores)) / temperature).flatten(0, 1)
    return exact_attention(
        folded.flatten(0, 1), state.generation.embeddings, bias=bias, temperature=temperature
    )

"""Merge the proposals of shards into the ranking that one machine would produce.

Each shard proposes as many candidates as one machine would; the best of all shards are used, for each leg and
head. Shards are ordered by position, so ties break as on one machine. A proposal contains positions and the
parts of the logits, no documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from dsearch.attention import PartialAttention, merge
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.kernel import Weighing
from dsearch.cluster.messages import PoolRequest, PoolResult, Proposal, ProposalRequest
from dsearch.cluster.release import Release
from dsearch.cluster.search.second_stage import ShardedReranker
from dsearch.engine.ranking.output import Found, SearchOutput, ranked
from dsearch.engine.ranking.scoring import CandidateScores
from dsearch.engine.snapshot import NONE


@dataclass(frozen=True, slots=True)
class Candidates:
    """Union of the candidates of all legs and heads of each query, by position, padded with −1.

    Attributes:
        positions: positions in the whole generation.
        dense: folded query · embedding.
        keyword: b(q, d).
        shards: shard number of each candidate, −1 for padding.
        keys: the shard's number of the key that each head chose, −1 for padding; None where every document
            has one key.
        memory: γ M(q, d); None without a query memory.
        names: names of their texts, −1 without words; None if they were not asked for.
        is_extra: True for documents behind the candidates, see `SearchOutput`; None: there are none.
    """

    positions: Int64[np.ndarray, "batch candidates"]
    dense: Float32[np.ndarray, "batch heads candidates"]
    keyword: Float32[np.ndarray, "batch candidates"]
    shards: Int64[np.ndarray, "batch candidates"]
    keys: Int64[np.ndarray, "batch heads candidates"] | None = None
    memory: Float32[np.ndarray, "batch candidates"] | None = None
    names: Int64[np.ndarray, "batch candidates"] | None = None
    is_extra: Bool[np.ndarray, "batch candidates"] | None = None


def merged(
    proposals: Mapping[int, Proposal], offsets: Mapping[int, int], question: ProposalRequest
) -> tuple[Candidates, int]:
    """Merge the candidates of all shards; also return the number of documents that the filters admit.

    Args:
        proposals: proposal of each shard, by shard number; at least one.
        offsets: first position of each shard.
        question: request to the shards.
    """
    numbers = sorted(proposals)
    every = [proposals[number] for number in numbers]
    documents = sum(proposal.documents for proposal in every)
    positions = np.concatenate([proposal.positions for proposal in every], axis=1)
    dense = np.concatenate([proposal.dense for proposal in every], axis=2)
    keyword = np.concatenate([proposal.keyword for proposal in every], axis=1)
    widths = [proposal.positions.shape[1] for proposal in every]
    shards = np.broadcast_to(np.repeat(np.array(numbers, np.int64), widths), positions.shape)
    keys = None
    if any(proposal.keys is not None for proposal in every):
        keys = np.concatenate([_keys(proposals[number], offsets[number]) for number in numbers], axis=2)
    memory, leading = None, None
    if question.past is not None:
        memory = np.concatenate([p.memory for p in every if p.memory is not None], axis=1)
        proposable = np.concatenate([p.by_memory for p in every if p.by_memory is not None], axis=1)
        leading = np.where(proposable, memory, 0.0)
    names = None
    if question.collapse:
        names = np.concatenate([p.names for p in every if p.names is not None], axis=1)
    is_extra = None
    if question.depth is None:
        chosen = _chosen(positions, dense, keyword, leading, documents, question, question.candidates)
    else:
        outside = np.concatenate([p.is_extra for p in every if p.is_extra is not None], 1)
        inside = np.where(outside, NONE, positions)
        sharing = _chosen(inside, dense, keyword, leading, documents, question, question.candidates)
        deeper = _chosen(positions, dense, keyword, leading, documents, question, question.depth)
        chosen, is_extra = sharing | deeper, deeper & ~sharing
    width = int(chosen.sum(axis=1).max(initial=0))
    order = np.argsort(~chosen, axis=1, kind="stable")[:, :width]  # chosen ones first, by position
    valid = np.take_along_axis(chosen, order, 1)

    def taken(array: np.ndarray, behind: int | float) -> np.ndarray:
        along, inside = (order, valid) if array.ndim == 2 else (order[:, None], valid[:, None])
        return np.where(inside, np.take_along_axis(array, along, array.ndim - 1), behind).astype(array.dtype)

    candidates = Candidates(
        positions=taken(positions, NONE),
        dense=taken(dense, 0.0),
        keyword=taken(keyword, 0.0),
        shards=taken(shards, NONE),
        keys=None if keys is None else taken(keys, NONE),
        memory=None if memory is None else taken(memory, 0.0),
        names=None if names is None else taken(names, NONE),
        is_extra=None if is_extra is None else taken(is_extra, False),
    )
    return candidates, documents


def _keys(proposal: Proposal, offset: int) -> Int64[np.ndarray, "batch heads candidates"]:
    if proposal.keys is not None:
        return proposal.keys
    own = np.where(proposal.positions == NONE, NONE, proposal.positions - offset)
    return np.broadcast_to(own[:, None], proposal.dense.shape)


def _chosen(
    positions: Int64[np.ndarray, "batch every"],
    dense: Float32[np.ndarray, "batch heads every"],
    keyword: Float32[np.ndarray, "batch every"],
    leading: Float32[np.ndarray, "batch every"] | None,
    documents: int,
    question: ProposalRequest,
    most: int,
) -> Bool[np.ndarray, "batch every"]:
    """Mask the `most` best of all shards in a leg of a head: what one machine would propose."""
    valid = positions != NONE
    chosen = np.zeros(positions.shape, bool)
    if question.mode != "keyword":
        if documents <= most:
            return valid
        for head in range(dense.shape[1]):
            np.put_along_axis(chosen, _best(np.where(valid, dense[:, head], -np.inf), most), True, 1)
    if question.texts is not None and question.mode != "dense":
        by_words = np.zeros(positions.shape, bool)
        np.put_along_axis(by_words, _best(np.where(valid, keyword, 0.0), most), True, 1)
        chosen |= by_words & (keyword > 0)
    if leading is not None:
        by_memory = np.zeros(positions.shape, bool)
        np.put_along_axis(by_memory, _best(np.where(valid, leading, 0.0), most), True, 1)
        chosen |= by_memory & (leading > 0)
    return chosen & valid


def _best(scores: Float32[np.ndarray, "batch every"], most: int) -> Int64[np.ndarray, "batch best"]:
    return np.argsort(-scores, axis=1, kind="stable")[:, :most]


def ranked_by_head(
    candidates: Candidates,
    folded: Float[Tensor, "batch heads encoder_dim"],
    head: Head,
    question: ProposalRequest,
    reranker: ShardedReranker | None = None,
) -> SearchOutput:
    """Attention over the candidates, as of `SearchLayer`.

    The context is empty: it needs the shards' embeddings (`pooled`). `reranker` is the second stage.
    """
    found = Found(
        candidates.positions,
        CandidateScores(torch.as_tensor(candidates.dense)),
        None if question.keyword_weight is None else candidates.keyword,
        None if candidates.memory is None else torch.as_tensor(candidates.memory),
        candidates.is_extra,
    )
    weighing = Weighing(head.heads, head.mixture_of(folded), head.temperature)
    second_stage = None if reranker is None else partial(reranker.terms, owners=candidates.shards)
    output, order = ranked(found, head, folded, weighing, second_stage=second_stage)
    if candidates.keys is None:
        return output
    return output._replace(keys=np.take_along_axis(candidates.keys, order.numpy()[:, None], 2))


def poolings(output: SearchOutput, release: Release, head: Head, most: int) -> dict[int, PoolRequest]:
    """Build the pooling request of each shard: the first `most` candidates of each query."""
    positions = output.positions[:, :most]
    shards = release.owners(positions)
    if output.keys is None:
        offsets = np.array([entry.offset for entry in release.shards], np.int64)
        local = np.where(positions == NONE, NONE, positions - offsets[shards])
        keys = np.broadcast_to(local[:, None], (*output.dense.shape[:2], local.shape[1]))
    else:
        keys = output.keys[:, :, :most]
    logits = (output.raw / head.temperature)[:, :, :most].numpy()
    requests: dict[int, PoolRequest] = {}
    for shard in np.unique(shards[shards != NONE]).tolist():
        here = shards == shard
        width = int(here.sum(axis=1).max())
        order = np.argsort(~here, axis=1, kind="stable")[:, :width]
        valid = np.take_along_axis(here, order, 1)[:, None]
        requests[shard] = PoolRequest(
            np.where(valid, np.take_along_axis(keys, order[:, None], 2), NONE),
            np.where(valid, np.take_along_axis(logits, order[:, None], 2), -np.inf).astype(np.float32),
        )
    return requests


def pooled(parts: list[PoolResult], like: Float[Tensor, "batch heads encoder_dim"]) -> Float[Tensor, ...]:
    """Compute Σ_d a_h(q, d) e_d of each head from the triples of the shards; zeros without candidates."""
    if not parts:
        return torch.zeros_like(like)
    triples = [PartialAttention(*map(torch.tensor, (part.max, part.sum, part.context))) for part in parts]
    return merge(triples).finish().context

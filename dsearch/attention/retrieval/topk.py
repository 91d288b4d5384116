"""Top-k search, and attention over its candidates.

Selection has no gradient and needs none: where the k-th and the next score differ, small changes of the
query do not change the set. Only the *normaliser* can be wrong, because it omits the documents that are no
candidates; `exact_attention` counts them all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dsearch.attention.arrays import masked_softmax
from dsearch.attention.blockwise.card import search
from dsearch.attention.pooling import pool
from dsearch.errors import DimensionMismatch, InvalidRequest
from dsearch.products import product

_CARD_SCORES = 1 << 26  # scores of a block; below, launches dominate
GROUP = 32  # columns of a group of scores
MANY = 64  # rows from which groups save time


class TopK(NamedTuple):
    """The k best rows of each query, best first; fewer columns with fewer documents."""

    scores: Float[Tensor, "batch k"]
    rows: Int[Tensor, "batch k"]


class TopKAttention(NamedTuple):
    """Attention pooled over the candidates, with their rows and weights."""

    context: Float[Tensor, "batch value_dim"]
    log_partition: Float[Tensor, " batch"]
    rows: Int[Tensor, "batch k"]
    weights: Float[Tensor, "batch k"]


def top_k(
    queries: Float[Tensor, "batch dim"],
    keys: Float[Tensor, "documents dim"] | Float[np.ndarray, "documents dim"],
    k: int,
    *,
    block_size: int | None = None,
) -> TopK:
    """Exact inner-product search, without a gradient; equal scores are ordered by row.

    Scores are sums in float32 at least. A Hopper card that has the keys in half precision keeps none of
    them in memory (`card.py`); elsewhere they are computed block by block.

    Args:
        queries: one row a query.
        keys: a tensor, or an array that need not fit into memory.
        k: number of results; all documents if there are fewer.
        block_size: documents at a time; it changes speed and memory, not the result. None: all of them where
            the card searches, otherwise 8,192, on CUDA 65,536 and for fewer than 1,024 queries more.

    Raises:
        DimensionMismatch: queries and keys differ in dimension.
        InvalidRequest: k or block_size is below 1.
    """
    if k < 1 or (block_size is not None and block_size < 1):
        raise InvalidRequest(f"k={k}, block_size={block_size}; use 1 or more for both, or no block_size")
    if keys.shape[1] != queries.shape[1]:
        raise DimensionMismatch(f"queries of dimension {queries.shape[1]}, keys of {keys.shape[1]}")
    queries = queries.detach()
    if block_size is None:
        best = search(queries, keys.detach(), k) if isinstance(keys, Tensor) and len(queries) else None
        if best is not None:
            return TopK(*best)
        on_card = queries.device.type == "cuda"
        block_size = max(_CARD_SCORES // max(len(queries), 1), 65_536) if on_card else 8192
    scores = _accumulated(queries[:, :0])
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for start in range(0, keys.shape[0], block_size):
        part = keys[start : start + block_size]
        block = part.detach() if isinstance(part, Tensor) else torch.as_tensor(np.array(part))
        best = _best_of_block(_scores(queries, block.to(queries.device)), k)
        # Earlier rows stand first, and the choice among equals keeps the first: ties break by row.
        both = torch.cat([scores, best.scores], 1)
        merged = _best(both, k)
        scores, rows = merged.scores, torch.cat([rows, best.rows + start], 1).gather(1, merged.rows)
    return TopK(scores, rows)


def top_k_attention(
    queries: Float[Tensor, "batch dim"],
    keys: Float[Tensor, "documents dim"],
    values: Float[Tensor, "documents value_dim"] | None = None,
    *,
    k: int,
    temperature: float | Float[Tensor, ""] = 1.0,
    block_size: int | None = None,
) -> TopKAttention:
    """Attention over the k best keys.

    Args:
        queries: one row a query.
        keys: keys of the whole corpus; gradients reach the rows used.
        values: likewise; None pools the keys.
        k: candidates per query.
        temperature: divisor of the scores.
        block_size: documents at a time in the search; see `top_k`.

    Raises:
        DimensionMismatch: queries and keys differ in dimension.
        InvalidRequest: k or block_size is below 1.
    """
    values = keys if values is None else values
    queries = _accumulated(queries)
    rows = top_k(queries, keys, k, block_size=block_size).rows
    logits = (keys[rows].to(queries) @ queries.unsqueeze(-1)).squeeze(-1) / temperature
    weights = masked_softmax(logits)
    context = pool(weights.unsqueeze(-2), values[rows].to(queries)).squeeze(-2)
    return TopKAttention(context, logits.logsumexp(-1), rows, weights)


def _accumulated(queries: Tensor) -> Tensor:
    """Convert half precision to float32: in bfloat16 the best scores would mostly tie."""
    return queries if queries.dtype == torch.float64 else queries.float()


def _scores(queries: Tensor, block: Tensor) -> Tensor:
    """Compute every q·k, summed in float32 at least; bfloat16 is multiplied directly if possible."""
    # A product of two bfloat16 is exact in float32, and a card does them some ten times faster.
    as_it_is = queries.dtype == block.dtype == torch.bfloat16 and _multiplies_halves_into_single(queries)
    if as_it_is:
        return torch.ops.aten.mm.dtype(queries, block.T, torch.float32)
    queries = _accumulated(queries)
    return product(queries, block.to(queries))


def _multiplies_halves_into_single(queries: Tensor) -> bool:
    """Multiply bfloat16 with float32 sums, which torch 2.8 and later have on CUDA."""
    return queries.device.type == "cuda" and "dtype" in torch.ops.aten.mm.overloads()


def _best_of_block(scores: Tensor, k: int) -> TopK:
    """Return the k largest of each row; on CUDA by groups, because top-k dominates the product."""
    groups = scores.shape[1] // GROUP
    few = len(scores) < MANY or groups < 8 * k
    if scores.device.type != "cuda" or few or scores.shape[1] % GROUP:
        return _best(scores, k)
    return _best_of_groups(scores, k, groups)


def _best_of_groups(scores: Tensor, k: int, groups: int) -> TopK:
    """Return the k largest of each row by the maxima of groups; group g holds columns g, g + groups, …

    If the (k + 1)-th largest maximum is below the k-th, each of k groups has a score that no other group
    reaches, so the k best are in these groups.
    """
    maxima, chosen = scores.view(len(scores), -1, groups).amax(1).topk(k + 1, dim=1)
    members = torch.arange(0, scores.shape[1], groups, device=scores.device)
    columns = (chosen[:, :k].unsqueeze(-1) + members).flatten(1)
    best, places = scores.gather(1, columns).topk(k + 1, dim=1)
    cuts = torch.stack([maxima[:, k - 1] > maxima[:, k], best[:, k - 1] > best[:, k]])
    if not bool(cuts.all()):
        return _best(scores, k)
    rows = columns.gather(1, places[:, :k]).sort(dim=1).values
    best, order = scores.gather(1, rows).sort(dim=1, descending=True, stable=True)
    return TopK(best, rows.gather(1, order))


def _best(scores: Tensor, k: int) -> TopK:
    """Return the k largest of each row; the leftmost of equal ones, unlike `torch.topk`."""
    k = min(k, scores.shape[1])
    if k == 0:
        return TopK(scores[:, :0], torch.empty(len(scores), 0, dtype=torch.int64, device=scores.device))
    best, places = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    if best.shape[1] == k or bool((best[:, k - 1] > best[:, k]).all()):
        # No tie at the cut: the set is right, only its order may not be.
        places = places[:, :k].sort(dim=1).values
    else:
        places = _leftmost(scores, best[:, k - 1 : k], k)
    best, order = scores.gather(1, places).sort(dim=1, descending=True, stable=True)
    return TopK(best, places.gather(1, order))


def _leftmost(scores: Tensor, threshold: Tensor, k: int) -> Tensor:
    """Return the places of the k best, ascending: above the k-th best score, then the leftmost ties."""
    above = scores > threshold
    level = scores == threshold
    needed = k - above.sum(1, keepdim=True)
    return (above | (level & (level.cumsum(1) <= needed))).nonzero()[:, 1].view(len(scores), k)

"""Losses on values: a number, vector or label of a document, pooled from those of its neighbours.

    v̂(q) = Σ_{d ≠ q} a(q, d) v_d          a: the head's attention among all documents but q itself

(Nadaraya 1964, "On Estimating Regression", eq. 1; Watson 1964, "Smooth Regression Analysis"; with a learned
kernel.) Minimised over the head's projections and temperature is

    numbers, vectors    |v_q − v̂(q)|² / value_dim, of values in units of their standard deviation
    labels              −log p̃(y_q), p̃ = (1 − s) Σ_{d ≠ q} a(q, d) [y_d = y_q] + s / labels

The second is neighbourhood components analysis (Goldberger, Roweis, Hinton and Salakhutdinov 2004, eq. 2 and
the objective g(A) = Σ log p_i that they give beside eq. 3), with an inner product in place of −|A x − A y|².
The share s keeps the loss, and so the gradient, bounded where no neighbour has the label.

**Each document leaves itself out.** Every stored document is its own nearest neighbour, and with it among the
evidence the loss falls to zero as the temperature does, for any metric.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention import exact_attention, mix
from dsearch.attention.arrays import keyword_part
from dsearch.attention.retrieval.head import Head
from dsearch.training.losses.passages import FurtherPassages

SMOOTHING = 0.01  # s: what is given to all labels alike
NOT_EVIDENCE = -1  # the own place of a query that is no document

# Up to this many logits the plain expression is faster: keeping them costs less than computing them twice.
_PLAIN_LOGITS = 1 << 25

ValueKind = Literal["number", "vector", "label"]


def pooled_values(
    head: Head,
    states: Float[Tensor, "batch encoder_dim"],
    corpus: Float[Tensor, "documents encoder_dim"],
    values: Float[Tensor, "documents value_dim"],
    own: Int64[Tensor, " batch"],
    *,
    keyword: Float[Tensor, "batch documents"] | None = None,
    further: FurtherPassages | None = None,
    nearest: int | None = None,
) -> Float[Tensor, "batch value_dim"]:
    """Σ_h m_h Σ_{d ≠ own} softmax(l_h)_d v_d: exact over all documents, or over what a search would pool.

    Args:
        head: head of the model.
        states: of what is asked about.
        corpus: the embeddings of the evidence.
        values: theirs.
        own: each one's own place among the evidence, which is left out; −1 where it has none.
        keyword: b(q, d), None for dense attention.
        further: the further passages of long documents among the evidence.
        nearest: pool no more than so many of each leg, as a search with that many candidates does.
    """
    folded = head.fold(head.queries(states))
    batch, heads, _ = folded.shape
    plain = batch * heads * len(corpus) <= _PLAIN_LOGITS
    if not plain and further is None and nearest is None:
        return _in_blocks(head, folded, corpus, values, own, keyword)
    scores = folded @ corpus.T
    if further is not None:
        scores, _ = further.taken(folded, scores)
    scores = _without(scores, own)
    near = None if nearest is None else _candidates(scores, keyword, nearest)
    if keyword is not None:
        scores = scores + keyword_part(head.keyword_weight, keyword)
    if near is not None:
        scores = scores.masked_fill(~near[:, None], -torch.inf)
    # A document that is alone has no neighbour: its weights are zero, not NaN.
    alone = (scores == -torch.inf).all(-1, keepdim=True)
    outside = scores == -torch.inf
    logits = (scores.masked_fill(outside, 0.0) / head.temperature).masked_fill(outside & ~alone, -torch.inf)
    weights = logits.softmax(-1).masked_fill(outside, 0.0)
    return mix(weights, head.mixture_of(folded)) @ values


def squared_error(
    predicted: Float[Tensor, "batch value_dim"], wanted: Float[Tensor, "batch value_dim"]
) -> Float[Tensor, " batch"]:
    """|v − v̂|² / value_dim of each."""
    return (predicted - wanted).square().mean(-1)


def log_loss(
    shares: Float[Tensor, "batch labels"], wanted: Float[Tensor, "batch labels"]
) -> Float[Tensor, " batch"]:
    """−log p̃ of each; `wanted` is 1 at the right label."""
    right = (shares * wanted).sum(-1)
    return -((1 - SMOOTHING) * right + SMOOTHING / shares.shape[-1]).log()


def loss_of_values(
    kind: ValueKind, predicted: Float[Tensor, "batch value_dim"], wanted: Float[Tensor, "batch value_dim"]
) -> Float[Tensor, " batch"]:
    """The loss for values of this kind."""
    return log_loss(predicted, wanted) if kind == "label" else squared_error(predicted, wanted)


def _without(
    scores: Float[Tensor, "batch heads documents"], own: Int64[Tensor, " batch"]
) -> Float[Tensor, "batch heads documents"]:
    """−∞ at each one's own place."""
    places = torch.arange(scores.shape[-1], device=scores.device)
    return scores.masked_fill((places == own[:, None])[:, None], -torch.inf)


def _candidates(
    scores: Float[Tensor, "batch heads documents"],
    keyword: Float[Tensor, "batch documents"] | None,
    nearest: int,
) -> Tensor:
    """Mask of the documents that a search would pool: the candidates of any head, or of any keyword."""
    count = min(nearest, scores.shape[-1])
    near = torch.zeros_like(scores, dtype=torch.bool)
    near.scatter_(-1, scores.topk(count, -1).indices, True)
    near = near.any(1)
    if keyword is not None:
        best = keyword.topk(count, -1)
        near = near.scatter(-1, best.indices, near.gather(-1, best.indices) | (best.values > 0))
    return near


def _in_blocks(
    head: Head,
    folded: Float[Tensor, "batch heads encoder_dim"],
    corpus: Float[Tensor, "documents encoder_dim"],
    values: Float[Tensor, "documents value_dim"],
    own: Int64[Tensor, " batch"],
    keyword: Float[Tensor, "batch documents"] | None,
) -> Float[Tensor, "batch value_dim"]:
    """The same without a matrix of all logits, forward and backward."""
    batch, heads, _ = folded.shape
    places = own.repeat_interleave(heads)

    def bias(start: int, stop: int, *weighted: Tensor) -> Tensor:
        block = folded.new_zeros(batch * heads, stop - start)
        if weighted:
            assert keyword is not None
            block = block + keyword_part(weighted[0], keyword[:, start:stop]).flatten(0, 1)
        itself = torch.arange(start, stop, device=folded.device) == places[:, None]
        return block.masked_fill(itself, -torch.inf)

    learned = () if keyword is None else (head.keyword_weight / head.temperature,)
    attended = exact_attention(
        folded.flatten(0, 1),
        corpus,
        values,
        bias=bias,
        bias_parameters=learned,
        temperature=head.temperature,
    )
    contexts = attended.context.unflatten(0, (batch, heads))
    return (head.mixture_of(folded)[..., None] * contexts).sum(1)

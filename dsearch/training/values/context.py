"""Values of a field that are learned behind a head's attention: W_V, W_O and b.

    c(q) = Σ_{d ≠ q} a(q, d) e_d        o(q) = W_O W_V c(q) + b

a is the head's attention and stays as it is, so the contexts c are computed once. The loss is

    numbers, vectors    |y_q − o(q)|² / value_dim, of values in units of their standard deviation
    labels              −log p̃(y_q), p̃ = (1 − s) softmax(o(q)) + s / labels

The share s bounds the loss. W_O starts as the ridge regression of the values on the contexts, whose penalty
is chosen by the exact leave-one-out error: row i of Y − Ŷ divided by 1 − H_ii (Allen 1974, PRESS).

**Each document leaves itself out.** Every stored document is its own nearest neighbour: with itself among the
evidence it would be predicted from its own embedding, as no new document can be.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from dsearch.attention import mix
from dsearch.attention.arrays import keyword_part
from dsearch.attention.retrieval.head import Head
from dsearch.training.losses.passages import FurtherPassages

SMOOTHING = 0.01  # s: the share that all labels have alike
NOT_EVIDENCE = -1  # place of a query among the evidence that it is no part of
_PENALTIES = tuple(10.0**power for power in range(-4, 4))
_SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of one-hot values as logits

ValueKind = Literal["number", "vector", "label"]


def attention_weights(
    head: Head,
    states: Float[Tensor, "batch encoder_dim"],
    corpus: Float[Tensor, "documents encoder_dim"],
    own: Int64[Tensor, " batch"],
    *,
    keyword: Float[Tensor, "batch documents"] | None = None,
    further: FurtherPassages | None = None,
    nearest: int | None = None,
) -> Float[Tensor, "batch documents"]:
    """Σ_h m_h softmax(l_h) over all documents but one's own, or over those that a search would pool.

    Args:
        head: head of the model.
        states: query embeddings.
        corpus: embeddings of the evidence.
        own: place of each query among the evidence, which is left out; −1 for a query that has none.
        keyword: b(q, d), None for dense attention.
        further: further passages of long documents among the evidence.
        nearest: number of candidates of each leg, as in a search; None for all documents.
    """
    folded = head.fold(head.queries(states))
    scores = folded @ corpus.T
    if further is not None:
        scores, _ = further.taken(folded, scores)
    places = torch.arange(scores.shape[-1], device=scores.device)
    scores = scores.masked_fill((places == own[:, None])[:, None], -torch.inf)
    near = None if nearest is None else _candidates(scores, keyword, nearest)
    if keyword is not None:
        scores = scores + keyword_part(head.keyword_weight, keyword)
    if near is not None:
        scores = scores.masked_fill(~near[:, None], -torch.inf)
    # A document without any other has no neighbour: its weights are zero, not NaN.
    alone = (scores == -torch.inf).all(-1, keepdim=True)
    weights = (scores / head.temperature).masked_fill(alone, 0.0).softmax(-1).masked_fill(alone, 0.0)
    return mix(weights, head.mixture_of(folded))


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


def start_output(
    output: nn.Linear,
    contexts: Float[Tensor, "examples value_dim"],
    targets: Float[Tensor, "examples output_dim"],
    *,
    labels: bool,
) -> None:
    """Set an output projection to the ridge regression of the targets on the contexts.

    Args:
        output: the projection.
        contexts: pooled embeddings.
        targets: values, one-hot for labels.
        labels: True if the output is logits: their scale is chosen by the log loss of left-out examples.
    """
    x, y = contexts.double(), targets.double()
    centre, middle = x.mean(0), y.mean(0)
    u, s, v = torch.linalg.svd(x - centre, full_matrices=False)
    projected = u.T @ (y - middle)
    best: tuple[float, Tensor, Tensor] | None = None
    for penalty in _PENALTIES:
        shrunk = s.square() / (s.square() + penalty)
        leverage = (u.square() * shrunk).sum(1) + 1 / len(x)
        fitted = middle + u @ (shrunk[:, None] * projected)
        left_out = y - (y - fitted) / (1 - leverage).clamp_min(1e-6)[:, None]
        error = (y - left_out).square().mean().item()
        if best is None or error < best[0]:
            weight = (v.T * (s / (s.square() + penalty))) @ projected
            best = error, weight.T, left_out
    assert best is not None
    _, weight, left_out = best
    scale = 1.0
    if labels:
        target = targets.argmax(1)
        losses = [nn.functional.cross_entropy(left_out * factor, target).item() for factor in _SCALES]
        scale = _SCALES[losses.index(min(losses))]
    with torch.no_grad():
        output.weight.copy_(scale * weight)
        output.bias.copy_(scale * (middle - weight @ centre))

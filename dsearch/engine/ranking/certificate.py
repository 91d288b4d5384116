"""Certificate that the first hits of a search are exactly those of scoring every document.

A document that no leg proposed has at most the k-th largest inner product and the k-th largest keyword score
of the proposals (an exact leg that is queried for k proposes the k best). These floors bound the score of an
unseen document. If the last certified hit scores more than the bound, no document was missed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention import Certificate, certify
from dsearch.attention.arrays import length
from dsearch.attention.retrieval.head import Head
from dsearch.engine.ranking.candidates import propose
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.ranking.scores import NamedScore
from dsearch.engine.snapshot.snapshot import NONE, Snapshot


def certificate_of(
    layer: SearchLayer,
    output: SearchOutput,
    states: Float[Tensor, "batch encoder_dim"],
    texts: Sequence[str] | None,
    places: int,
) -> Certificate:
    """Certify the first `places` hits of what `layer` found for these states and texts.

    With hops it is about the refined query of the last round. Its cost is that of proposing once more.
    """
    snapshot = layer.snapshot
    if layer.over == "all" or layer.match is not None:
        every = torch.ones(len(output.positions), dtype=torch.bool)
        margin = output.scores.new_full((len(output.positions),), math.inf)
        return Certificate(every, margin, "every document was scored")
    positions = propose(snapshot, output.folded, texts, mode=layer.mode, candidates=layer.candidates)
    proposed = torch.as_tensor(positions != NONE)
    everything = proposed.sum(1) >= snapshot.documents
    if why := _no_bound(layer):
        return replace(certify(output.scores, places, None), proved=everything, reason=why)
    by_head = torch.zeros(output.folded.shape[:2])
    if layer.mode != "keyword":
        by_head = _score_bound(layer, output, states, positions)
    if texts is not None and layer.mode != "dense":
        by_head = by_head + _keyword_bound(layer, texts, positions)
    if output.recalled is not None:
        by_head = by_head + layer.memory.most(output.recalled)[:, None] * (1 + 1e-5)
    by_head = by_head.masked_fill(everything[:, None], -math.inf)
    if layer.head.heads == 1:
        certificate = certify(output.scores, places, by_head[:, 0])
    else:
        certificate = certify(*_of_mixture(layer, output, by_head, places))
    # Nothing unseen can be a candidate at all, so fewer hits than places are all that there are.
    nothing = (by_head == -math.inf).all(-1)
    return replace(
        certificate,
        proved=certificate.proved | nothing,
        margin=certificate.margin.masked_fill(nothing, math.inf),
    )


def _no_bound(layer: SearchLayer) -> str | None:
    if layer.mode == "keyword":
        return None
    if not isinstance(layer.score, NamedScore):
        return "no bound on unseen documents is known for a score of your own"
    if layer.snapshot.dense_rounding is None:
        kind = layer.snapshot.generation.dense.kind
        return f"a dense index of kind {kind} may have overlooked documents; only Flat gives a bound"
    return None


def _score_bound(
    layer: SearchLayer,
    output: SearchOutput,
    states: Float[Tensor, "batch encoder_dim"],
    positions: Int64[np.ndarray, "batch proposed"],
) -> Float[Tensor, "batch heads"]:
    """The most that the score, without the keyword part, can be for a document that was not proposed."""
    snapshot, head = layer.snapshot, layer.head
    assert isinstance(layer.score, NamedScore)
    assert snapshot.dense_rounding is not None
    low, high = snapshot.embedding_lengths()
    inner = _inner_products(snapshot, output.folded, positions)
    inner = inner.masked_fill(torch.as_tensor(positions == NONE)[:, None], -math.inf)
    floor = _kth_largest(inner, layer.candidates)
    floor = floor + snapshot.dense_rounding * high * length(output.folded)[..., 0]
    smallest, largest = _stretch(head)
    lengths = length(states).expand_as(floor)  # heads turn a query and keep its length
    return layer.score.bound(floor, lengths, low * smallest, high * largest, head.encoder_dim)


def _inner_products(
    snapshot: Snapshot,
    folded: Float[Tensor, "batch heads encoder_dim"],
    positions: Int64[np.ndarray, "batch proposed"],
) -> Float[Tensor, "batch heads proposed"]:
    """With the best passage of each document, as the dense leg ranks."""
    embeddings = torch.as_tensor(snapshot.embeddings(positions)).to(folded)
    inner = torch.einsum("bhd,bcd->bhc", folded, embeddings)
    if snapshot.passages is None or (beside := snapshot.passages.beside(positions)) is None:
        return inner
    columns, further = beside
    others = torch.as_tensor(snapshot.passages.embeddings(further)).to(folded)
    raised = torch.einsum("bhd,bed->bhe", folded, others)
    at = torch.as_tensor(columns)[:, None].expand_as(raised)  # padding goes behind the last document
    padded = torch.cat([inner, inner.new_full((*inner.shape[:2], 1), -math.inf)], dim=-1)
    return padded.scatter_reduce(-1, at, raised, "amax")[..., :-1]


def _keyword_bound(
    layer: SearchLayer, texts: Sequence[str], positions: Int64[np.ndarray, "batch proposed"]
) -> Float[Tensor, "batch heads"]:
    """The most that the keyword part can be for a document that was not proposed."""
    scores = torch.as_tensor(layer.snapshot.keyword_scores(texts, positions))[:, None]
    last = _kth_largest(scores.masked_fill(scores <= 0, -math.inf), layer.candidates)
    most = layer.head.keyword_weight * last.clamp_min(0.0) * (1 + 1e-5)
    bound = most.clamp_min(0.0)  # b is never negative, w may be
    if layer.mode == "keyword":  # the leg found every document with a word of the query
        return bound.masked_fill(last == -math.inf, -math.inf)
    return bound


def _of_mixture(
    layer: SearchLayer, output: SearchOutput, by_head: Float[Tensor, "batch heads"], places: int
) -> tuple[Float[Tensor, "batch places"], int, Float[Tensor, " batch"]]:
    """The least that each of the first hits can weigh, and the most that any other document can (logarithms).

    How heads compare depends on their partition sums, and those on documents that were not seen: each sum
    lies between that of the candidates and that with all others at their bound.
    """
    temperature, share = layer.temperature, layer.head.mixture_of(output.folded).log()
    seen = torch.as_tensor(output.positions != NONE)
    logits = (output.raw / temperature).masked_fill(~seen[:, None], -math.inf)
    most = by_head / temperature
    others = (layer.snapshot.documents - seen.sum(1, keepdim=True)).clamp_min(0)
    least_sum = logits.logsumexp(-1)
    largest_sum = torch.logaddexp(least_sum, most + others.log())

    def log_weights(
        logits: Float[Tensor, "batch heads documents"], log_sums: Float[Tensor, "batch heads"]
    ) -> Float[Tensor, "batch documents"]:
        parts = (logits - log_sums[..., None]).masked_fill(logits == -math.inf, -math.inf)
        return (share[..., None] + parts).logsumexp(1)

    rest = torch.cat([logits[..., places:], most[..., None]], dim=-1)
    others_most = log_weights(rest, least_sum).amax(-1)
    return log_weights(logits[..., :places], largest_sum), places, others_most


def _kth_largest(scores: Float[Tensor, "batch heads candidates"], k: int) -> Float[Tensor, "batch heads"]:
    """−∞ where there are fewer than k: then the leg has found all there are."""
    if scores.shape[-1] < k:
        return scores.new_full(scores.shape[:-1], -math.inf)
    return scores.topk(k, -1).values[..., -1]


def _stretch(head: Head) -> tuple[float, float]:
    """Return the extreme singular values of the key projection, which bound a key's length."""
    if not head.key_delta.any():
        return 1.0, 1.0
    projection = head.key_projection().detach().double().numpy()
    stretches = np.linalg.svd(projection, compute_uv=False)  # largest first
    return float(stretches[-1]) * (1 - 1e-6), float(stretches[0]) * (1 + 1e-6)

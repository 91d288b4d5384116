"""Training over shards: the exact softmax over all documents, without moving their embeddings.

    shard s:     (C_s, Z_s) = attention of the queries over its documents, Z_s = log Σ_{d in s} exp(l_d)
    here:        Z = log Σ_s exp(Z_s)        C = Σ_s exp(Z_s − Z) C_s          (`dsearch.attention.merge`)
    backward:    ∂C_s, ∂Z_s come from that merge; each shard computes its ∂q, ∂w and ∂t from them; they add up

The gradient equals that of one process over all documents. Messages have the size of the queries.

`attend`, `attend_backward` and `gather` are a shard's part, `ShardedCorpus` and the losses the trainer's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from dsearch.attention import ExactAttention, PartialAttention, exact_attention, merge
from dsearch.attention.arrays import keyword_part
from dsearch.attention.retrieval.head import START_TEMPERATURE, Head
from dsearch.attention.retrieval.kernel import log_mix, raw_scores
from dsearch.cluster.messages import (
    GatherRequest,
    GatherResult,
    ShardAttendRequest,
    ShardAttention,
    ShardGradients,
)
from dsearch.cluster.release import Release
from dsearch.cluster.search.attention import Shards
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
        keyword = state.with_bm25(request.weighting).keyword_scores(request.texts, positions)
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
        scores = state.with_bm25(request.weighting).all_keyword_scores(request.texts)
        bias = (keyword_part(keyword_weight, torch.tensor(scores)) / temperature).flatten(0, 1)
    return exact_attention(
        folded.flatten(0, 1), state.generation.embeddings, bias=bias, temperature=temperature
    )


class ShardedCorpus:
    """All documents of a release, to attend to with gradients.

    Args:
        release: release to attend to.
        shards: its shards; the gradient needs answers of all.
    """

    def __init__(self, release: Release, shards: Shards):
        self.release = release
        self._shards = shards

    def attend(
        self,
        folded: Float[Tensor, "batch heads encoder_dim"],
        texts: Sequence[str] | None,
        *,
        keyword_weight: Float[Tensor, " heads"],
        temperature: Float[Tensor, ""],
        weighting: tuple[float, float] | None = None,
    ) -> ExactAttention:
        """Compute Σ_d a_h(q, d) e_d and log Σ_d exp(l_h(q, d)) over every document, as one process would.

        Args:
            folded: queries of all heads, folded to compare with stored embeddings.
            texts: words of each query; None omits the keyword part.
            keyword_weight: w_h.
            temperature: t.
            weighting: (k1, b) of the keyword score; None for those of the generation.

        Raises:
            ShardsLost: a shard does not answer.
            NotInCluster: documents with several passages.
        """
        words = None if texts is None else list(texts)
        contexts, partitions = cast(
            "tuple[Tensor, Tensor]",
            _AskShards.apply(self, words, weighting, folded, keyword_weight, temperature),
        )
        parts = [
            PartialAttention.of_result(context, z) for context, z in zip(contexts, partitions, strict=True)
        ]
        return merge(parts).finish()

    def gather(
        self,
        positions: Int64[np.ndarray, "batch documents"],
        texts: Sequence[str] | None,
        weighting: tuple[float, float] | None = None,
    ) -> tuple[Float[Tensor, "batch documents encoder_dim"], Float[Tensor, "batch documents"]]:
        """Return embeddings of some documents and b(q, d) by this (k1, b); zeros at −1."""
        words = None if texts is None else list(texts)
        owners = self.release.owners(positions)
        requests = {
            int(shard): GatherRequest(np.where(owners == shard, positions, -1), words, weighting)
            for shard in np.unique(owners[positions >= 0])
        }
        embeddings = torch.zeros(*positions.shape, self.release.dimension)
        keyword = torch.zeros(positions.shape)
        for answer in self._shards.ask("gather", requests).values():
            embeddings += torch.tensor(answer.embeddings)
            keyword += torch.tensor(answer.keyword)
        return embeddings, keyword

    def ask(self, method: str, argument: Any) -> list[Any]:
        """Return the answers of all shards, in their order."""
        return self.each(method, dict.fromkeys(range(len(self.release.shards)), argument))

    def each(self, method: str, requests: Mapping[int, Any]) -> list[Any]:
        """Return the answers of shards to a request for each."""
        answers = self._shards.ask(method, requests)
        return [answers[number] for number in sorted(answers)]


def log_weights(
    corpus: ShardedCorpus,
    head: Head,
    states: Float[Tensor, "batch encoder_dim"],
    texts: Sequence[str] | None,
    positions: Int64[np.ndarray, "batch documents"],
) -> Float[Tensor, "batch documents"]:
    """Compute log Σ_h m_h softmax(l_h) of some documents, normalised over all documents, for listwise losses.

    Args:
        corpus: all documents.
        head: head to train; gradients reach all its parameters.
        states: query embeddings.
        texts: words of each query; None omits the keyword part.
        positions: positions of the documents; −1 is padding, whose result must be masked.
    """
    folded = head.fold(head.queries(states))
    temperature = head.temperature
    whole = corpus.attend(
        folded,
        texts,
        keyword_weight=head.keyword_weight,
        temperature=temperature,
        weighting=head.keyword_weighting,
    )
    embeddings, keyword = corpus.gather(positions, texts, head.keyword_weighting)
    dense = torch.einsum("bhd,bcd->bhc", folded, embeddings)
    raw = raw_scores(dense, keyword_part(head.keyword_weight, keyword))
    return log_mix(raw / temperature - whole.log_partition[..., None], head.mixture_of(folded))


def listwise(
    corpus: ShardedCorpus,
    head: Head,
    states: Float[Tensor, "batch encoder_dim"],
    texts: Sequence[str] | None,
    positions: Int64[np.ndarray, "batch documents"],
    target: Float[Tensor, "batch documents"],
) -> Float[Tensor, ""]:
    """Graded cross-entropy over the whole corpus: −Σ_d p_d log weight_d, the mean over the queries.

    Args:
        corpus: all documents.
        head: head to train.
        states: query embeddings.
        texts: words of each query.
        positions: positions of the relevant documents, padded with −1.
        target: normalised grades, rows summing to 1; 0 at padding.
    """
    log_attention = log_weights(corpus, head, states, texts, positions)
    return -(target * log_attention.masked_fill(target == 0, 0.0)).sum(-1).mean()


def retention(
    corpus: ShardedCorpus, head: Head, positions: Int64[np.ndarray, " documents"]
) -> Float[Tensor, ""]:
    """Mean KL(π₀ ‖ π_h) over stored documents as queries: `objectives.retention` over shards.

    Args:
        corpus: all documents.
        head: head to train.
        positions: positions of the documents used as queries.
    """
    documents = corpus.gather(positions[:, None], None)[0][:, 0]
    start = torch.tensor(START_TEMPERATURE)

    def attended(folded: Tensor) -> ExactAttention:
        unworded = torch.zeros(folded.shape[1])
        return corpus.attend(folded, None, keyword_weight=unworded, temperature=start)

    with torch.no_grad():
        frozen = attended(documents[:, None])
    folded = head.fold(head.queries(documents))
    trained = attended(folded).log_partition
    expected_frozen = (documents * frozen.context[:, 0]).sum(-1, keepdim=True) / start
    expected = torch.einsum("bhd,bd->bh", folded, frozen.context[:, 0]) / start
    return (expected_frozen - frozen.log_partition - (expected - trained)).mean()


class _AskShards(torch.autograd.Function):
    """Every shard's context and log partition function; backward requests each shard's gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        corpus: ShardedCorpus,
        texts: list[str] | None,
        weighting: tuple[float, float] | None,
        folded: Tensor,
        keyword_weight: Tensor,
        temperature: Tensor,
    ) -> tuple[Tensor, Tensor]:
        request = ShardAttendRequest(
            folded.detach().numpy(), texts, keyword_weight.detach().numpy(), float(temperature), weighting
        )
        parts = cast("list[ShardAttention]", corpus.ask("attend", request))
        ctx.corpus, ctx.request = corpus, request
        return (
            torch.stack([torch.tensor(part.context) for part in parts]),
            torch.stack([torch.tensor(part.log_partition) for part in parts]),
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, contexts: Tensor, partitions: Tensor) -> tuple[Any, ...]:  # pyright: ignore
        upstream = {
            number: ShardGradients(ctx.request, context.numpy(), partition.numpy())
            for number, (context, partition) in enumerate(zip(contexts, partitions, strict=True))
        }
        gradients = ctx.corpus.each("attend_backward", upstream)
        folded, keyword_weight, temperature = (
            sum(torch.tensor(part) for part in parts) for parts in zip(*gradients, strict=True)
        )
        return None, None, None, folded, keyword_weight, temperature

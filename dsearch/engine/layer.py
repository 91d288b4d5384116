"""`SearchLayer`: a collection as a layer of a network. What serves a request is what gradients flow through.

    query states → f_h → fold → candidates (FAISS ∪ BM25 ∪ fresh rows) → exact logits → softmax per head
                                                                       → mixture, context, values

Candidates are proposed without gradients; everything computed from them has gradients. The layer's parameters
are the head's; the corpus is never part of `state_dict`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from dsearch.attention import masked_softmax, mix, pool, refine
from dsearch.attention.head import Head
from dsearch.engine.snapshot import NONE, Snapshot
from dsearch.errors import InvalidRequest
from dsearch.types import Mode

CANDIDATES = 100  # proposed by each leg for each head
HOP_CANDIDATES = 10  # what a hop pools: the best few speak for the query, the rest for the corpus

EmbedRows = Callable[[Int64[np.ndarray, "batch candidates"]], Float[Tensor, "batch candidates encoder_dim"]]


class SearchOutput(NamedTuple):
    """What attention over the candidates gave; they are sorted by weight, best first, padding last.

    Attributes:
        context: Σ_d weight(q, d) v_d, the mixture of the heads' contexts.
        weights: the mixture of the heads' softmaxes; zeros where `positions` is −1.
        positions: of the snapshot; −1 = none.
        scores: the order of hits: dense + keyword with one head, else temperature · log weight + const.
        dense: q_h · k_d, per head.
        keyword: w_h · b(q, d), per head.
        head_weights: each head's softmax.
        folded: the queries against stored embeddings, after the last hop.
    """

    context: Float[Tensor, "batch value_dim"]
    weights: Float[Tensor, "batch candidates"]
    positions: Int64[np.ndarray, "batch candidates"]
    scores: Float[Tensor, "batch candidates"]
    dense: Float[Tensor, "batch heads candidates"]
    keyword: Float[Tensor, "batch heads candidates"]
    head_weights: Float[Tensor, "batch heads candidates"]
    folded: Float[Tensor, "batch heads encoder_dim"]


class SearchLayer(nn.Module):
    """Attention of query states over the documents of a snapshot.

    Args:
        snapshot: the documents.
        head: the learned part; its parameters are this module's.
        mode: "hybrid", "dense" or "keyword".
        candidates: how many documents each leg proposes for each head.
        hops: rounds of search; from the second on the query is refined by what the one before found.
        hop_strength: g; None takes the head's learned one.

    Raises:
        InvalidRequest: hops or candidates below 1, an unknown mode.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        head: Head,
        *,
        mode: Mode = "hybrid",
        candidates: int = CANDIDATES,
        hops: int = 1,
        hop_strength: float | None = None,
    ):
        super().__init__()
        if mode not in ("hybrid", "dense", "keyword"):
            raise InvalidRequest(f"mode={mode!r}; use hybrid, dense or keyword")
        for name, value in {"candidates": candidates, "hops": hops}.items():
            if value < 1:
                raise InvalidRequest(f"{name}={value}; use an integer of at least 1")
        self.snapshot, self.head = snapshot, head
        self.mode: Mode = mode
        self.candidates, self.hops, self.hop_strength = candidates, hops, hop_strength

    @classmethod
    def open(
        cls, home: Path | str, collection: str, *, model: str | None = None, **options: Any
    ) -> SearchLayer:
        """A layer over the present state of a collection, with a head of its own to train.

        Reads the home without its lock, loads no encoder, and sees nothing that is written later.

        Args:
            home: the folder of collections.
            collection: its name.
            model: the version whose head it starts from; the live one when None.
            options: as for `SearchLayer`.

        Raises:
            CollectionNotFound, ModelNotFound, CorruptData.
        """
        from dsearch.engine.engine import SearchEngine

        with SearchEngine(home, readonly=True) as engine:
            opened = engine.collection(collection)
            head = opened.head(opened.live_model if model is None else model)
            return cls(opened.snapshot, head, **options)

    def forward(
        self,
        query_states: Float[Tensor, "batch encoder_dim"],
        texts: Sequence[str] | None = None,
        *,
        embed: EmbedRows | None = None,
    ) -> SearchOutput:
        """Search with each query state, and with its text for the keyword leg.

        Args:
            query_states: what the encoder gives for a query, or what another network gives in its place.
            texts: the words of each query; without them the keyword leg finds and adds nothing.
            embed: gives the embeddings of positions in the graph, for gradients into the document encoder;
                the stored ones when None.

        Raises:
            DimensionMismatch: states of another length than the embeddings.
            InvalidRequest: another number of texts than states; mode "keyword" without texts.
        """
        if texts is not None and len(texts) != len(query_states):
            raise InvalidRequest(f"{len(texts)} texts for {len(query_states)} query states; give one each")
        if texts is None and self.mode == "keyword":
            raise InvalidRequest("mode='keyword' without texts; give the words of each query")
        queries = self.head.queries(query_states)
        for _ in range(self.hops - 1):
            queries = self._hop(queries, texts, embed)
        return self._attend(queries, texts, embed)

    def _hop(
        self,
        queries: Float[Tensor, "batch heads key_dim"],
        texts: Sequence[str] | None,
        embed: EmbedRows | None,
    ) -> Float[Tensor, "batch heads key_dim"]:
        found = self._attend(queries, texts, embed)
        best = found.positions[:, :HOP_CANDIDATES]
        head_weights = found.head_weights[..., :HOP_CANDIDATES]
        head_weights = head_weights / head_weights.sum(-1, keepdim=True).clamp_min(1e-30)
        strength = self.head.hop_strength if self.hop_strength is None else self.hop_strength
        return refine(queries, head_weights, self.head.keys(self._embeddings(best, queries, embed)), strength)

    def _attend(
        self,
        queries: Float[Tensor, "batch heads key_dim"],
        texts: Sequence[str] | None,
        embed: EmbedRows | None,
    ) -> SearchOutput:
        folded = self.head.fold(queries)
        positions = self._propose(folded, texts)
        candidates = self._embeddings(positions, queries, embed)
        dense = torch.einsum("bhd,bcd->bhc", folded, candidates)
        keyword = torch.zeros_like(dense)
        if texts is not None and self.mode != "dense":
            scores = torch.as_tensor(self.snapshot.keyword_scores(texts, positions)).to(dense)
            keyword = self.head.keyword_weight[:, None] * scores[:, None]
        if self.mode == "keyword":
            dense = torch.zeros_like(dense)
        logits = (dense + keyword) / self.head.temperature
        mask = torch.as_tensor(positions != NONE).to(logits.device)
        head_weights = masked_softmax(logits, mask.unsqueeze(1))
        weights = mix(head_weights, self.head.mixture)
        scores = self._scores(dense + keyword, logits, mask)
        order = _by_score_then_position(scores, positions)
        along = order[:, None].expand_as(head_weights)
        return SearchOutput(
            context=pool(weights.unsqueeze(1), self.head.values(candidates)).squeeze(1),
            weights=weights.gather(1, order),
            positions=np.take_along_axis(positions, order.cpu().numpy(), 1),
            scores=scores.gather(1, order),
            dense=dense.gather(2, along),
            keyword=keyword.gather(2, along),
            head_weights=head_weights.gather(2, along),
            folded=folded,
        )

    def _propose(
        self, folded: Float[Tensor, "batch heads encoder_dim"], texts: Sequence[str] | None
    ) -> Int64[np.ndarray, "batch candidates"]:
        """The union of what the legs find for the heads; everything in a collection no larger than that."""
        batch, heads, _ = folded.shape
        found: list[Int64[np.ndarray, "batch found"]] = []
        by_keyword = texts is not None and self.mode != "dense"
        if self.mode != "keyword":
            if self.snapshot.documents <= self.candidates:
                return np.broadcast_to(self.snapshot.visible(), (batch, self.snapshot.documents))
            flat = folded.detach().flatten(0, 1).float().cpu().numpy()
            found.append(self.snapshot.dense_candidates(flat, self.candidates).reshape(batch, -1))
        if by_keyword:
            assert texts is not None
            found.append(self.snapshot.keyword_candidates(texts, self.candidates))
        return (
            _distinct(found[0])
            if len(found) == 1 and heads == 1
            else _distinct(np.concatenate(found, axis=1))
        )

    def _embeddings(
        self, positions: Int64[np.ndarray, "batch candidates"], like: Tensor, embed: EmbedRows | None
    ) -> Float[Tensor, "batch candidates encoder_dim"]:
        if embed is not None:
            return embed(positions).to(like)
        return torch.as_tensor(self.snapshot.embeddings(positions)).to(like)

    def _scores(
        self,
        raw: Float[Tensor, "batch heads candidates"],
        logits: Float[Tensor, "batch heads candidates"],
        mask: Bool[Tensor, "batch candidates"],
    ) -> Float[Tensor, "batch candidates"]:
        """Ordered exactly as the weights, but not lost where a softmax underflows to zero."""
        if self.head.heads == 1:
            scores = raw[:, 0]
        else:
            share = self.head.mixture.log()
            partition = logits.masked_fill(~mask[:, None], -torch.inf).logsumexp(-1)
            partition = torch.where(torch.isfinite(partition), partition, 0.0)
            log_weights = (share[:, None] + logits - partition[..., None]).logsumexp(1)
            scores = self.head.temperature * (log_weights + (self.head.mixture * partition).sum(-1)[:, None])
        return scores.masked_fill(~mask, -torch.inf)


def _distinct(positions: Int64[np.ndarray, "batch found"]) -> Int64[np.ndarray, "batch candidates"]:
    """Each position once in its row, ascending, padded with −1 behind; no column that is all padding."""
    ordered = np.sort(positions, axis=1)
    ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = NONE
    last = np.iinfo(np.int64).max
    ordered = np.sort(np.where(ordered == NONE, last, ordered), axis=1)
    ordered[ordered == last] = NONE
    return ordered[:, : int((ordered != NONE).sum(axis=1).max(initial=0))]


def _by_score_then_position(
    scores: Float[Tensor, "batch candidates"], positions: Int64[np.ndarray, "batch candidates"]
) -> Int64[Tensor, "batch candidates"]:
    """The order of hits: by score, ties by position. Proposals ascend, so a stable sort does."""
    return scores.detach().sort(dim=1, descending=True, stable=True).indices

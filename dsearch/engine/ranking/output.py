"""`SearchOutput`: the result of attention over candidates, or over all documents.

    `Found`, what a source of candidates knows of them → the kernel → `SearchOutput`

One machine and shards have sources of their own (ranker.py, cluster/search/merge.py); all else is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from dsearch.attention.arrays import (
    Array,
    as_like,
    gather,
    is_tensor,
    keyword_part,
    numbers_of,
    on_device_of,
    zeros,
)
from dsearch.attention.retrieval.kernel import StageTerms, Weighing, rank, raw_scores
from dsearch.engine.ranking.candidates import within_reach
from dsearch.engine.ranking.scoring import CandidateScores, rows_at
from dsearch.engine.snapshot import NONE
from dsearch.errors import Conflict

if TYPE_CHECKING:
    from dsearch.attention.memory_rows import Recalled
    from dsearch.attention.retrieval.fixed_head import HeadFormulas
    from dsearch.attention.retrieval.kernel import CandidateWeights
    from dsearch.engine.ranking.second_stage import FirstStage
    from dsearch.engine.ranking.whole import WholeOutput


ContextOf = Callable[
    [Int64[np.ndarray, "batch candidates"], "CandidateWeights"], Float[Array, "batch value_dim"]
]


class SearchOutput(NamedTuple):
    """Result of attention over the candidates, sorted by weight, best first, padding last.

    Attributes:
        context: Σ_d weight(q, d) v_d, the mixture of the heads' contexts.
        weights: the mixture of the heads' weights; zeros where `positions` is −1.
        positions: positions in the snapshot; −1 = none.
        scores: the order of hits: dense + keyword + memory + second with one head, else temperature · log
            weight + const.
        dense: q_h · k_d, or the score in its place, per head.
        keyword: w_h(q) · b(q, d), per head.
        head_weights: each head's weights, a softmax unless `pooling` differs.
        folded: the queries against stored embeddings, after the last hop.
        keys: the key of each candidate that each head chose, the best of its passages, numbered as in
            `Snapshot.key_embeddings`; None if every candidate has only one key, or `embed` gave it.
        memory: γ M(q, d), the same for all heads; None without a memory.
        recalled: the past queries of the memory that each query attends to.
        output: output projection of the context; None if the head has none, or other values are pooled.
        documents: number of documents that share the attention: candidates, or all in reach.
        second: term of the second stage, the same for all heads; None without one.
        reranked: of `second` the part by a reranker; None without one.
        covered_mass: share of the attention over all documents that is theirs; 1 over all. In a collection of
            more than 20,000 documents an estimate. It is that of the first stage. Of `SearchLayer.forward`
            alone, and None with `embed`.
        ids_of: gives the ids at positions, without padding; None for a layer without a collection.
        texts: of each query's candidates, if they were asked for.
        is_extra: True for documents that only deeper legs proposed, behind the candidates: they share no
            attention, and their weights continue the candidates' scale. None: there are none.
        dense_of_all, keyword_of_all: scores of every position, if candidate generation computed them; see
            `SearchLegs`. Without gradients.
    """

    context: Float[Array, "batch value_dim"]
    weights: Float[Array, "batch candidates"]
    positions: Int64[np.ndarray, "batch candidates"]
    scores: Float[Array, "batch candidates"]
    dense: Float[Array, "batch heads candidates"]
    keyword: Float[Array, "batch heads candidates"]
    head_weights: Float[Array, "batch heads candidates"]
    folded: Float[Array, "batch heads encoder_dim"]
    memory: Float[Array, "batch candidates"] | None = None
    recalled: Recalled | None = None
    keys: Int64[np.ndarray, "batch heads candidates"] | None = None
    dense_of_all: Float32[np.ndarray, "batch heads positions"] | None = None
    keyword_of_all: Float32[np.ndarray, "batch positions"] | None = None
    output: Float[Array, "batch output_dim"] | None = None
    documents: Int64[np.ndarray, " batch"] | None = None
    covered_mass: Float[Array, " batch"] | None = None
    second: Float[Array, "batch candidates"] | None = None
    reranked: Float[Array, "batch candidates"] | None = None
    ids_of: Callable[[Int64[np.ndarray, "batch candidates"]], list[list[str]]] | None = None
    texts: list[list[str]] | None = None
    is_extra: Bool[np.ndarray, "batch candidates"] | None = None

    @property
    def ids(self) -> list[list[str]]:
        """Ids of each query's candidates, best first; of a layer over a collection (`open_layer`)."""
        if self.ids_of is None:
            raise Conflict("ids of a layer without a collection; open it with dsearch.open_layer")
        return self.ids_of(self.positions)

    @property
    def raw(self) -> Float[Array, "batch heads candidates"]:
        """Logits times the temperature: the sum of the parts of each head's score."""
        return raw_scores(self.dense, self.keyword, self.memory, self.second)

    @property
    def first_raw(self) -> Float[Array, "batch heads candidates"]:
        """`raw` before the second stage."""
        return raw_scores(self.dense, self.keyword, self.memory)

    @property
    def sharing(self) -> Int64[np.ndarray, "batch candidates"]:
        """The positions of candidates that share the attention; −1 elsewhere."""
        return self.positions if self.is_extra is None else np.where(self.is_extra, NONE, self.positions)


class Found(NamedTuple):
    """What a source of candidates knows of those of some queries.

    Attributes:
        positions: ascending; −1 = none.
        scored: their dense scores.
        words: b(q, d); None without a keyword leg.
        memory: M(q, d), what past queries add; None without a query memory.
        is_extra: True for documents that are listed behind the candidates; None: there are none.
    """

    positions: Int64[np.ndarray, "batch candidates"]
    scored: CandidateScores
    words: Float32[np.ndarray, "batch candidates"] | None = None
    memory: Float[Array, "batch candidates"] | None = None
    is_extra: Bool[np.ndarray, "batch candidates"] | None = None


def ranked(
    found: Found,
    head: HeadFormulas,
    folded: Float[Array, "batch heads encoder_dim"],
    weighing: Weighing,
    *,
    all_reached: bool = True,
    second_stage: Callable[[FirstStage], StageTerms] | None = None,
    context_of: ContextOf | None = None,
) -> tuple[SearchOutput, Int64[Array, "batch candidates"]]:
    """Weigh and order the candidates; return them best first, and the order.

    Args:
        found: the candidates.
        head: weighs keywords.
        folded: the queries against stored embeddings.
        weighing: how scores become weights.
        all_reached: True if every score is finite.
        second_stage: gives the terms of the candidates in a second stage; None without one.
        context_of: pools the candidates, given their positions and weights; None for a context without
            numbers.
    """
    dense = found.scored.dense
    keyword = None if found.words is None else keyword_part(head.keyword_weight, as_like(found.words, dense))
    memory = None if found.memory is None else as_like(found.memory, dense)
    raw = raw_scores(dense, keyword, memory)
    positions, mask = within_reach(found.positions, raw, all_reached=all_reached)
    shares_attention = positions != NONE
    if found.is_extra is not None:
        shares_attention = shares_attention & ~found.is_extra
        weighing = weighing._replace(is_extra=on_device_of(found.is_extra, raw))

    def terms_of(scores: Float[Array, "batch candidates"]) -> StageTerms:
        from dsearch.engine.ranking.second_stage import FirstStage

        assert second_stage is not None
        words = None if found.words is None else on_device_of(found.words, raw)
        first = FirstStage(positions, raw, scores, dense, words)
        return second_stage(first if found.is_extra is None else first.of(shares_attention))

    weights, scores, second, order = rank(raw, mask, weighing, None if second_stage is None else terms_of)
    context = zeros((len(folded), 0), folded) if context_of is None else context_of(positions, weights)
    along = order[:, None]  # for arrays with an axis of heads
    places, keys = numbers_of(order), found.scored.keys(positions)
    output = SearchOutput(
        context=context,
        weights=gather(weights.mixed, order, 1),
        positions=positions[np.arange(len(positions))[:, None], places],
        scores=gather(scores, order, 1),
        dense=gather(dense, along, 2),
        keyword=zeros(tuple(dense.shape), dense) if keyword is None else gather(keyword, along, 2),
        head_weights=gather(weights.by_head, along, 2),
        folded=folded,
        memory=None if memory is None else gather(memory, order, 1),
        keys=None if keys is None else np.take_along_axis(keys, places[:, None], 2),
        documents=shares_attention.sum(1),
        second=None if second is None else gather(second.values, order, 1),
        reranked=None if second is None or second.reranked is None else gather(second.reranked, order, 1),
        is_extra=None if found.is_extra is None else np.take_along_axis(found.is_extra, places, 1),
    )
    return output, order


def context_of(
    head: HeadFormulas,
    scored: CandidateScores,
    positions: Int64[np.ndarray, "batch candidates"],
    weights: CandidateWeights,
    *,
    values: Float[Array, "positions value_dim"] | None,
    whole: WholeOutput | None,
) -> Float[Array, "batch value_dim"]:
    """Σ_d weight(q, d) v_d.

    Args:
        head: its W_V gives the values.
        scored: the candidates' embeddings.
        positions: of the candidates; −1 = none.
        weights: their weights.
        values: row of each position in place of W_V e_d.
        whole: attention over all documents; None where candidates alone share it.
    """
    if whole is not None and whole.context is not None:
        return whole.context if values is not None else head.values(whole.context)
    if values is not None:
        rows = rows_at(values, positions).to(weights.mixed)
        return (weights.mixed[:, None] @ rows)[:, 0]
    # W_V is linear: Σ w (W_V e) = W_V (Σ w e), one projection a query rather than one a candidate.
    return head.values(scored.pooled(weights))


def in_sequences(output: SearchOutput, shape: Sequence[int]) -> SearchOutput:
    """Return an output of batch · steps queries as one of sequences: [batch, steps, …] in every array."""
    batch, steps = shape
    changed: dict[str, Any] = {}
    parts: dict[str, Any] = output._asdict()
    for name, part in parts.items():
        if is_tensor(part):
            changed[name] = part.unflatten(0, (batch, steps))
        elif isinstance(part, np.ndarray):
            changed[name] = part.reshape(batch, steps, *part.shape[1:])  # pyright: ignore
        elif name == "texts" and part is not None:
            changed[name] = [part[at * steps : (at + 1) * steps] for at in range(batch)]
    if (ids_of := output.ids_of) is not None:

        def ids_of_steps(positions: Int64[np.ndarray, "batch steps candidates"]) -> list[Any]:
            rows = ids_of(positions.reshape(batch * steps, positions.shape[-1]))
            return [rows[at * steps : (at + 1) * steps] for at in range(batch)]

        changed["ids_of"] = ids_of_steps
    return output._replace(**changed)

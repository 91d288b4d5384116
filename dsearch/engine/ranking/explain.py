"""Explanation of a hit's score, in parts that add up to it.

With one head the score is dense + keyword + memory + second stage + reranker. With several it is
(attention/retrieval/kernel.py)

    s(d) = t · (log Σ_h m_h a_h(d) + Σ_h m_h Z_h)         a_h(d) = exp(l_h(d) − Z_h)

and with shares r_h(d) = m_h a_h(d) / Σ_g m_g a_g(d) of the heads in the document's weight

    s(d) = Σ_h r_h(d) · t l_h(d)  +  t · Σ_h (r_h(d) · (log m_h − Z_h − log r_h(d)) + m_h Z_h)

exactly, since log Σ x = Σ r (log x − log r) with r = x / Σ x. t l_h(d) is dense_h + keyword_h + memory +
second stage. The second sum, which is 0 with one head, is called mixing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from dsearch.attention.arrays import Array, numbers_of, on_device_of, softmax, temper, zeros
from dsearch.attention.retrieval.fixed_head import HeadFormulas
from dsearch.attention.retrieval.kernel import log_parts, partition_by_head
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.ranking.ranker import Ranker
from dsearch.engine.snapshot import NONE
from dsearch.types import Explanation, PastQuery

SHOWN = 5  # past queries of a hit
Explain = Callable[[int, int], Explanation]


def explainer(
    output: SearchOutput,
    layer: Ranker,
    texts: Sequence[str] | None,
) -> Explain:
    """Return a function that explains a candidate's score, given the candidate's row and column in `output`.

    Args:
        output: candidates.
        layer: layer that ranked them.
        texts: texts of the queries.
    """
    of_terms = explained(output, layer.head, layer.temperature)
    past = _past_queries(output, layer)

    def explain(query: int, column: int) -> Explanation:
        terms: dict[str, float] = {}
        if texts is not None and layer.mode != "dense":
            terms = layer.snapshot.keyword_terms(texts[query], int(output.positions[query, column]))
        explanation = of_terms(query, column, terms)
        if past is not None:
            explanation = replace(explanation, past_queries=past(query, column))
        return explanation

    return explain


def explained(
    output: SearchOutput, head: HeadFormulas, temperature: float | Float[Array, ""]
) -> Callable[[int, int, Mapping[str, float]], Explanation]:
    """As `explainer`, for who has the share of each term in b(q, d) of that candidate."""
    raw, shares = output.raw, shares_of(output, head, temperature)
    mixing = zeros(output.scores.shape, output.scores)
    if head.heads > 1:
        mixing = output.scores - (shares * raw).sum(1)
    of_words = numbers_of(head.keyword_weight)
    dense, keyword, head_weights = map(numbers_of, (output.dense, output.keyword, output.head_weights))
    of_heads, rest = numbers_of(shares), numbers_of(mixing)

    def explain(query: int, column: int, terms: Mapping[str, float]) -> Explanation:
        by_reranker = 0.0 if output.reranked is None else float(output.reranked[query, column])
        second = 0.0 if output.second is None else float(output.second[query, column]) - by_reranker
        return Explanation(
            dense=dense[query, :, column].tolist(),
            keyword=keyword[query, :, column].tolist(),
            head_weights=head_weights[query, :, column].tolist(),
            terms={term: (of_words * share).tolist() for term, share in terms.items()},
            shares=of_heads[query, :, column].tolist(),
            mixing=float(rest[query, column]),
            memory=0.0 if output.memory is None else float(output.memory[query, column]),
            second_stage=second,
            reranker=by_reranker,
        )

    return explain


def _past_queries(output: SearchOutput, layer: Ranker) -> Callable[[int, int], list[PastQuery]] | None:
    """Return a function that names the past queries behind a candidate's memory part, the largest first."""
    if output.recalled is None:
        return None
    recalled = output.recalled

    def past(query: int, column: int) -> list[PastQuery]:
        rows, parts = layer.memory.sources(recalled, query, int(output.positions[query, column]))
        largest: list[int] = np.argsort(-np.abs(parts), kind="stable")[:SHOWN].tolist()
        texts = layer.memory.memory.texts
        return [
            PastQuery(query=None if texts is None else texts[int(rows[at])] or None, part=float(parts[at]))
            for at in largest
            if parts[at]
        ]

    return past


def shares_of(
    output: SearchOutput, head: HeadFormulas, temperature: float | Float[Array, ""]
) -> Float[Array, "batch heads candidates"]:
    """r_h(d): how much of each candidate's weight comes from each head."""
    logits = temper(output.raw, temperature)
    partition = partition_by_head(logits, on_device_of(output.sharing != NONE, logits))
    return softmax(log_parts(logits - partition[..., None], head.mixture_of(output.folded)), 1)

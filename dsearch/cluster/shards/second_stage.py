"""The second stage on a shard: matches of queries with its documents, by the tokens that it has.

A shard scores its own documents; features that compare candidates of several shards, and the order, are the
coordinator's (cluster/search/second_stage.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dsearch.attention.arrays import inference, numbers_of
from dsearch.attention.late_interaction import FixedStage, Interactions
from dsearch.cluster.wire.messages import MeaningRequest, QueryText, RescoreRequest, RescoreResult
from dsearch.encoder import TextTokens
from dsearch.engine.ranking.second_stage import Reranker, require_tokens
from dsearch.engine.search.highlights import meaning_highlighter
from dsearch.engine.snapshot import NONE, QueryTokens, Snapshot, query_tokens
from dsearch.types import Document, Highlight


def rerank(state: Snapshot, offset: int, request: RescoreRequest) -> RescoreResult:
    """Match each query with its candidates.

    Raises:
        InvalidRequest: the shard has no tokens.
    """
    with inference():
        require_tokens(state)
        reranker = Reranker(state, FixedStage())
        queries = _projected(state, request.queries)
        here = np.where(request.positions == NONE, NONE, request.positions - offset)
        matches = np.zeros((*here.shape, 3), np.float32)
        counts, present = np.zeros(here.shape, np.int64), np.zeros(here.shape, bool)
        for row, query in enumerate(queries):
            of, is_known = reranker.interactions(query, here[row], reranker.stage.strength)
            # Rounded from float64, so documents of equal tokens tie in any shard; see `_dense` of shard.py.
            states, weights, tokens, steps = (numbers_of(part).astype(np.float64) for part in of[:4])
            exact = Interactions(states, weights, tokens, steps, of.counts)
            matches[row] = np.stack(reranker.stage.matches(exact), axis=1)
            counts[row], present[row] = numbers_of(of.counts), is_known
        embeddings = state.embeddings(here) if request.embeddings else None
        return RescoreResult(matches, counts, present, embeddings)


def shown_meaning(
    state: Snapshot, request: MeaningRequest | None
) -> Callable[[int, int, Document], list[Highlight]] | None:
    """Return a function that highlights by meaning the document at a position, given the hit's number."""
    if request is None:
        return None
    require_tokens(state)
    pieces = meaning_highlighter(state, _projected(state, request.queries))

    def of_hit(number: int, position: int, document: Document) -> list[Highlight]:
        (row,) = state.rows(np.array([position])).tolist()
        return pieces(request.numbers[number], row, document)

    return of_hit


def _projected(state: Snapshot, queries: Sequence[QueryText]) -> list[QueryTokens]:
    return [query_tokens(TextTokens(query.states, query.spans), query.text, state) for query in queries]

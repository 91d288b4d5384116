"""Tokens of a query, as the tokens of a state's documents are matched with them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int64

from dsearch.attention.arrays import Array
from dsearch.encoder import TextTokens
from dsearch.engine.snapshot.snapshot import Snapshot
from dsearch.index import KeywordIndex

_MOST_QUERY_TOKENS = 64  # of largest weight


class QueryTokens(NamedTuple):
    """The tokens of one query.

    Attributes:
        states: projected as the documents' are; a tensor of the graph where the encoder learns.
        weights: idf of each one's word; never all 0.
        spans: [start, end) of each in characters of the query.
        text: the query, for a reranker.
    """

    states: Float32[np.ndarray, "query_tokens dims"] | Float[Array, "query_tokens dims"]
    weights: Float32[np.ndarray, " query_tokens"]
    spans: Int64[np.ndarray, "query_tokens 2"]
    text: str = ""


def query_tokens(tokens: TextTokens, text: str, snapshot: Snapshot) -> QueryTokens:
    """Project a query's tokens, and weigh them by the idf of their words.

    Stop words have none; a query of nothing else weighs all of its tokens alike.
    """
    assert snapshot.tokens is not None
    best, weights = _heaviest(text, tokens.spans, snapshot)
    projected = snapshot.tokens.codec.projected(tokens.states[best])
    return QueryTokens(projected, weights[best], tokens.spans[best], text)


def query_tokens_in_graph(
    states: Float[Array, "tokens encoder_dim"],
    spans: Int64[np.ndarray, "tokens 2"],
    text: str,
    snapshot: Snapshot,
) -> QueryTokens:
    """`query_tokens` of states that an encoder gives in the graph: gradients reach it."""
    import torch

    assert snapshot.tokens is not None
    best, weights = _heaviest(text, spans, snapshot)
    projection = torch.as_tensor(snapshot.tokens.codec.projection).to(states)
    projected = torch.nn.functional.normalize(states[torch.as_tensor(best)] @ projection.mT, dim=-1)
    return QueryTokens(projected, weights[best], spans[best], text)


def _heaviest(
    text: str, spans: Int64[np.ndarray, "tokens 2"], snapshot: Snapshot
) -> tuple[Int64[np.ndarray, " query_tokens"], Float32[np.ndarray, " tokens"]]:
    """The tokens of largest weight, ascending; and the weights of all."""
    weights = token_weights(text, spans, snapshot.keyword)
    if not weights.any():
        weights = np.ones(len(weights), np.float32)
    best = np.sort(np.argsort(-weights, kind="stable")[:_MOST_QUERY_TOKENS])
    return best[weights[best] > 0], weights


def token_weights(
    text: str, spans: Int64[np.ndarray, "tokens 2"], keyword: KeywordIndex
) -> Float32[np.ndarray, " tokens"]:
    """The idf of the word that each token is part of; 0 for one that is no term."""
    idf_of: dict[str, float] = {}
    weights = np.zeros(len(spans), np.float32)
    for number, (start, end) in enumerate(spans.tolist()):
        while start > 0 and text[start - 1].isalnum():
            start -= 1
        while end < len(text) and text[end].isalnum():
            end += 1
        word = text[start:end]
        if word not in idf_of:
            idf_of[word] = keyword.idf(word)
        weights[number] = idf_of[word]
    return weights

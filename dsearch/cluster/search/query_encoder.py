"""`EncodedQueries`: embeddings of queries and tokens for a second stage, by one pass of the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from jaxtyping import Float
from torch import Tensor

from dsearch.encoder import TextTokens
from dsearch.engine import Collection
from dsearch.engine.search.queries import token_encoder_of
from dsearch.types import Mode


class EncodedQueries(NamedTuple):
    """Queries as numbers.

    Attributes:
        states: embeddings by the encoder of a version; zeros where only words count.
        tokens: of each query; None where nobody asked for them.
    """

    states: Float[Tensor, "batch encoder_dim"]
    tokens: Sequence[TextTokens] | None


class QueryEncoder(Protocol):
    """Encodes the queries of one collection."""

    def __call__(self, texts: Sequence[str], mode: Mode, model: str, tokens: bool) -> EncodedQueries:
        """Return embeddings by the encoder of a version and, if `tokens`, token states."""
        ...


def encode_queries(
    collection: Collection, texts: Sequence[str], mode: Mode, model: str, tokens: bool
) -> EncodedQueries:
    """Encode in this process; see `QueryEncoder`.

    Raises:
        EncoderUnavailable: the encoder gives no token states, and they are wanted.
        ModelNotFound.
    """
    of_tokens = token_encoder_of(collection, model) if tokens else None
    states = collection.query_states(texts, mode, model, of_tokens)
    if of_tokens is None:
        return EncodedQueries(states, None)
    return EncodedQueries(states, collection.kept_query_tokens.of(of_tokens, texts))

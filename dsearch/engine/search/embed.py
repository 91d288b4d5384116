"""Embeddings by a model's two sides, and ranking of given texts by them.

    query     unit(Σ_h m_h W_Kᵀ q_h)     the mixture of the heads, folded into the space of stored embeddings
    document  unit(e_d)

The inner product of the two orders documents as the dense score of a model with one head does: |W_Kᵀ q| is
the same for all documents. Several heads have a softmax each, which one vector cannot express; the mixture is
their mean. The keyword score and the query memory have no vector and no part here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32

from dsearch.attention.arrays import unit
from dsearch.encoder import TextEncoder
from dsearch.encoder.text_encoder import Role
from dsearch.encoder.tokens import Vocabulary
from dsearch.engine.state.state import State
from dsearch.errors import InvalidRequest, amount


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """Unit vectors of texts.

    Attributes:
        vectors: one a text.
        tokens: number of tokens of all texts; of words if the encoder does not count tokens.
        model: version that they are of.
    """

    vectors: Float32[np.ndarray, "texts encoder_dim"]
    tokens: int
    model: str


def embed(
    collection: State,
    texts: Sequence[str],
    side: Role,
    *,
    model: str | None = None,
    dimensions: int | None = None,
) -> EmbedResult:
    """Embed texts by the query or document side of a model. Texts beyond the encoder's window are cut.

    Args:
        collection: whose encoder and models.
        texts: not empty ones.
        side: "query" or "document".
        model: a version; the live one when None.
        dimensions: how many of the first numbers to keep; scaled to length 1 again. All when None.

    Raises:
        EncoderMismatch: the collection's embeddings are supplied, or of another encoder.
        InvalidRequest: dimensions out of range.
        ModelNotFound.
    """
    longest = collection.store.dimension
    if dimensions is not None and not 1 <= dimensions <= longest:
        raise InvalidRequest(f"dimensions={dimensions}; use an integer from 1 to {longest}")
    version = collection.live_model if model is None else model
    head = collection.head(version)
    if side == "query":
        encoder = collection.encoder_of(version)
        with torch.no_grad():
            states = collection.query_states(texts, "dense", version)
            folded = head.fold(head.queries(states))
            vectors = unit((head.mixture_of(folded)[..., None] * folded).sum(1)).numpy()
    else:
        own = collection.has_documents_of(version)
        encoder = collection.encoder_of(version) if own else collection.encoder
        vectors = encoder.encode_documents(texts)
    if dimensions is not None and dimensions < longest:
        vectors = unit(torch.as_tensor(vectors[:, :dimensions])).numpy()
    return EmbedResult(vectors.astype(np.float32, copy=False), token_count(encoder, texts), version)


@dataclass(frozen=True, slots=True)
class RelevanceResult:
    """Similarity of texts to a query, 0 to 1.

    Attributes:
        scores: (1 + cosine) / 2, one a text.
        tokens: as for `EmbedResult`, of the query and all texts.
        model: version that they are of.
    """

    scores: Float32[np.ndarray, " texts"]
    tokens: int
    model: str


def rerank(
    collection: State, query: str, texts: Sequence[str], *, model: str | None = None
) -> RelevanceResult:
    """Compare a query with texts, which need not be in the collection, as a model compares it with documents.

    Raises:
        EncoderMismatch, ModelNotFound: as `embed`.
    """
    query_side = embed(collection, [query], "query", model=model)
    document_side = embed(collection, texts, "document", model=query_side.model)
    cosines = document_side.vectors @ query_side.vectors[0]
    return RelevanceResult(
        np.clip((1 + cosines) / 2, 0, 1), query_side.tokens + document_side.tokens, query_side.model
    )


def token_count(encoder: TextEncoder, texts: Sequence[str]) -> int:
    """Number of tokens of texts; of words if the encoder does not count tokens."""
    counted = getattr(encoder, "token_counts", None)
    return sum(counted(list(texts))) if counted else sum(len(text.split()) for text in texts)


def text_of_tokens(encoder: TextEncoder, tokens: Sequence[int]) -> str:
    """Text of token ids as the encoder's own tokenizer gives them, its first and last special token included.

    The special tokens tell its ids from those of another vocabulary, whose text would be nonsense.

    Raises:
        InvalidRequest: ids of another vocabulary, or an encoder whose tokenizer is not to be had.
    """
    advice = "send the text (langchain-openai: check_embedding_ctx_length=False)"
    vocabulary: Vocabulary | None = getattr(encoder, "vocabulary", None)
    if vocabulary is None:
        raise InvalidRequest(f"a list of tokens, and the encoder shows no tokenizer; {advice}")
    first, last = vocabulary.first, vocabulary.last
    if len(tokens) < 3 or tokens[0] != first or tokens[-1] != last or max(tokens) >= vocabulary.size:
        raise InvalidRequest(
            f"a list of {amount(len(tokens), 'token')} that are not of this encoder's vocabulary of "
            f"{vocabulary.size} "
            f"(they begin with {first} and end with {last}); {advice}"
        )
    return vocabulary.decode(list(tokens))

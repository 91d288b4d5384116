"""`KeptQueryTokens`: tokens of recent queries, by the pass of the encoder that gives their embeddings."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from dsearch.encoder import EncoderIdentity, TextEncoder, TextTokens
from dsearch.engine.indexing.tokens import token_encoder

_MOST = 256  # of some ten tokens each: 4 MB at 384 numbers


class KeptQueryTokens:
    """Least recently used tokens, for many threads; by the collection's own encoder, or a version's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens: OrderedDict[tuple[EncoderIdentity, str], TextTokens] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tokens)

    def encode(self, encoder: TextEncoder, texts: Sequence[str]) -> Float32[np.ndarray, "texts encoder_dim"]:
        """Embeddings of queries, in place of `encoder.encode_queries`; their tokens are kept."""
        embeddings, tokens = token_encoder(encoder).encode_tokens(texts, "query")
        self._keep(encoder, texts, tokens)
        return embeddings

    def of(self, encoder: TextEncoder, texts: Sequence[str]) -> list[TextTokens]:
        """The tokens of queries; those that are not kept are encoded.

        Raises:
            EncoderUnavailable: the encoder gives no token states.
        """
        with self._lock:
            identity = encoder.identity
            by_text = {
                text: self._tokens[identity, text] for text in texts if (identity, text) in self._tokens
            }
            for text in by_text:
                self._tokens.move_to_end((identity, text))
        missing = [text for text in dict.fromkeys(texts) if text not in by_text]
        if missing:
            _, tokens = token_encoder(encoder).encode_tokens(missing, "query")
            self._keep(encoder, missing, tokens)
            by_text.update(zip(missing, tokens, strict=True))
        return [by_text[text] for text in texts]

    def forget(self) -> None:
        """Empty the cache."""
        with self._lock:
            self._tokens.clear()

    def _keep(self, encoder: TextEncoder, texts: Sequence[str], tokens: Sequence[TextTokens]) -> None:
        with self._lock:
            named = ((encoder.identity, text) for text in texts)
            self._tokens.update(zip(named, tokens, strict=True))
            while len(self._tokens) > max(_MOST, len(texts)):  # who asked for them takes them next
                self._tokens.popitem(last=False)

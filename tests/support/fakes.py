"""An encoder for fast tests: words hashed to directions. Never part of the product."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence

import numpy as np
import torch

from dsearch.encoder import EncoderIdentity, TextTokens
from dsearch.encoder.encoder import TokenBatch


class HashingEncoder(torch.nn.Module):
    """A text is the normalised sum of its words' vectors, fixed by their hashes, times a learned matrix.

    Texts that share words are near each other, equal texts are equal, and gradients reach `weight`.
    """

    def __init__(self, dimension: int = 32, name: str = "hashing"):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(dimension))
        self._identity = EncoderIdentity(name, "", "0" * 64, "sum", 256, "test", "float32", dimension)
        self.encoded = 0

    @property
    def identity(self) -> EncoderIdentity:
        return self._identity

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """A word is a token, and a text has a mark at each end."""
        return [len(text.split()) + 2 for text in texts]

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        with torch.no_grad():
            return self.embed(texts, "query").numpy().astype(np.float32)

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        self.encoded += len(texts)
        with torch.no_grad():
            return self.embed(texts, "document").numpy().astype(np.float32)

    def encode_tokens(
        self, texts: Sequence[str], role: str = "document"
    ) -> tuple[np.ndarray, list[TextTokens]]:
        """The state of a word is its direction, whatever stands beside it."""
        encode = self.encode_documents if role == "document" else self.encode_queries
        return encode(texts), [self._tokens(text) for text in texts]

    def embed_tokens(self, texts: Sequence[str], role: str) -> TokenBatch:
        """As `encode_tokens`, in the graph."""
        spans = [self._tokens(text).spans for text in texts]
        states = [self._states(text, of) @ self.weight for text, of in zip(texts, spans, strict=True)]
        units = [torch.nn.functional.normalize(of, dim=-1) for of in states]
        return TokenBatch(self.embed(texts, role), units, spans)

    def _tokens(self, text: str) -> TextTokens:
        spans = np.array([match.span() for match in re.finditer(r"\w+|[^\w\s]", text)], np.int64).reshape(
            -1, 2
        )
        with torch.no_grad():
            states = (self._states(text, spans) @ self.weight).float()
            return TextTokens(torch.nn.functional.normalize(states, dim=-1).numpy(), spans)

    def _states(self, text: str, spans: np.ndarray) -> torch.Tensor:
        size = self.identity.dimension
        drawn = [_direction(text[start:end].lower(), size) for start, end in spans]
        return torch.as_tensor(np.array(drawn, np.float64).reshape(len(spans), size)).to(self.weight.dtype)

    def embed(self, texts: Sequence[str], role: str) -> torch.Tensor:
        vectors = np.zeros((len(texts), self.identity.dimension))
        for row, text in enumerate(texts):
            for word in text.lower().split() or [""]:
                vectors[row] += _direction(word.strip(".,;:!?"), self.identity.dimension)
        stored = torch.as_tensor(vectors).to(self.weight)
        return torch.nn.functional.normalize(stored @ self.weight, dim=-1)


@functools.lru_cache(1 << 16)  # a generator of random numbers costs more than all else here
def _direction(word: str, dimension: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
    direction = np.random.default_rng(seed).standard_normal(dimension)
    direction.flags.writeable = False  # the next who asks for it has the same array
    return direction

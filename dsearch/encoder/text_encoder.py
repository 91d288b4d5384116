"""`TextEncoder`: the encoder interface of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32

from dsearch.encoder.identity import EncoderIdentity

if TYPE_CHECKING:
    from torch import Tensor

Role = Literal["query", "document"]


@runtime_checkable
class TextEncoder(Protocol):
    """Encoder interface of the engine."""

    @property
    def identity(self) -> EncoderIdentity:
        """Identity of the encoder, by which embeddings are comparable."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts encoder_dim"]:
        """Unit embeddings of queries."""
        ...

    def encode_documents(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts encoder_dim"]:
        """Unit embeddings of documents."""
        ...

    def embed(self, texts: Sequence[str], role: Role) -> Float[Tensor, "texts encoder_dim"]:
        """Unit embeddings as part of the graph: gradients reach the encoder's weights."""
        ...

"""Token states: what an encoder computes for each token of a text, beside the embedding of the whole.

    embedding = pooled states; the states are there in any case, so one pass gives both

`TokenEncoder` is an encoder that hands them out: torch, and exported models by a second output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Int64


class TextTokens(NamedTuple):
    """The tokens of one text, without the marks at both ends and without a prompt.

    Attributes:
        states: of unit length.
        spans: [start, end) of each in characters of the text, ascending.
    """

    states: Float32[np.ndarray, "tokens encoder_dim"]
    spans: Int64[np.ndarray, "tokens 2"]


@runtime_checkable
class TokenEncoder(Protocol):
    """An encoder that also gives the states of tokens."""

    def encode_tokens(
        self, texts: Sequence[str], role: Any = "document"
    ) -> tuple[Float32[np.ndarray, "texts encoder_dim"], list[TextTokens]]:
        """Unit embeddings of texts as `encode_documents` or `encode_queries` gives them, and their tokens."""
        ...


def inside_text(
    spans: Int64[np.ndarray, "tokens 2"], special: Bool[np.ndarray, " tokens"], prompt: str
) -> Bool[np.ndarray, " tokens"]:
    """True for tokens of the text itself: no marks, none of the prompt in front, none without characters."""
    return ~special & (spans[:, 0] >= len(prompt)) & (spans[:, 1] > spans[:, 0])

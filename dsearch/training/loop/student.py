"""`Student`: the trained model that answers held-out queries: a head, and an encoder if it learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32
from torch import nn

from dsearch.attention.retrieval.head import Head
from dsearch.encoder import EncoderChange, LearningEncoder
from dsearch.training.data.examples import Examples


class Student(nn.Module):
    """A head and, in the scopes `query` and `full`, a copy of the encoder that learns with it.

    Args:
        head: head of the model.
        encoder: encoder to train; None if the stored embeddings of documents and queries are used.
    """

    def __init__(self, head: Head, encoder: LearningEncoder | None = None):
        super().__init__()
        self.head = head
        self.encoder = encoder

    @property
    def change(self) -> EncoderChange | None:
        """Change of the encoder."""
        return None if self.encoder is None else self.encoder.change()

    def states(self, examples: Examples) -> Float32[np.ndarray, "queries encoder_dim"]:
        """The query embeddings as they are now."""
        return examples.states if self.encoder is None else self.encoder.encode_queries(examples.texts)

    def embed(self, texts: Sequence[str]) -> Any:
        """Query embeddings in the graph.

        Raises:
            TypeError: no encoder learns here.
        """
        if self.encoder is None:
            raise TypeError("this student has no encoder")
        return self.encoder.embed(texts, "query")

"""`Observer`: receives the progress of a running job, and may stop it.

`Student`: the model in training, which answers held-out queries: a head, and an encoder if it learns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32
from torch import nn

from dsearch.attention.retrieval.head import Head
from dsearch.encoder import EncoderChange, LearningEncoder
from dsearch.training.data.examples import Examples
from dsearch.types import Progress

if TYPE_CHECKING:
    from dsearch.training.gate.held_out import Headroom


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass over the examples: the mean losses, and the seconds since the start.

    Attributes:
        before: nDCG@10 of held-out queries before training: "all", "seen" and "unseen"; None where no query
            was held out, and after epochs that are no checkpoints.
        after: the same after this epoch.
    """

    number: int
    of: int
    loss: float
    retention: float
    elapsed_s: float
    before: Mapping[str, float | None] | None = None
    after: Mapping[str, float | None] | None = None


class Observer:
    """Receives the reports of a training, a tuning or an evaluation; override the methods that matter.

    Every method is called in the thread that runs the job.
    """

    def remark(self, text: str) -> None:
        """Receive a sentence for people: data left out, folders used."""

    def headroom(self, room: Headroom) -> None:
        """Receive the gain that is left, before training starts."""

    def epoch(self, stage: str, epoch: Epoch) -> None:
        """Receive the end of an epoch; `stage` is "validate" or "train"."""

    def progress(self, progress: Progress) -> None:
        """Receive the number of steps done."""

    def cancelled(self) -> bool:
        """Return True to stop the job before its next step; it then raises `Cancelled`."""
        return False


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

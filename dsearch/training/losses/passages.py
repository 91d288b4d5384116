"""Long documents in training: every score over the corpus is that of a document's best passage.

The best passage depends on query and head and is chosen again in every step, as in a search; gradients are
those of the best passage (attention/retrieval/maxp.py). No passage is left out and none is sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention.retrieval.maxp import best_passages
from dsearch.engine import Snapshot
from dsearch.products import product


@dataclass(frozen=True, slots=True)
class FurtherPassages:
    """Further passages of a corpus; the first passages are stored separately, by position.

    Attributes:
        embeddings: embedding of each further passage.
        owners: position of each passage's document in the corpus, ascending.
        every: embeddings of first and further passages, concatenated; None if not kept.
    """

    embeddings: Float[Tensor, "further encoder_dim"]
    owners: Int64[Tensor, " further"]
    every: Float[Tensor, "passages encoder_dim"] | None = None

    @classmethod
    def of(cls, snapshot: Snapshot, corpus: Float[Tensor, "documents encoder_dim"]) -> FurtherPassages | None:
        """Those beside the first passages of a snapshot, None when no document is long.

        Those of deleted documents are zeros, as first passages are.
        """
        passages = snapshot.passages
        if passages is None:
            return None
        embeddings = passages.embeddings(np.arange(len(passages)))
        if snapshot.excluded is not None:
            embeddings[snapshot.excluded[passages.owners]] = 0
        every = torch.cat([corpus, torch.as_tensor(embeddings).to(corpus)])
        owners = torch.as_tensor(passages.owners).to(corpus.device)
        return cls(every[len(corpus) :], owners, every)

    def to(self, device: torch.device) -> FurtherPassages:
        """The same on a device."""
        return FurtherPassages(self.embeddings.to(device), self.owners.to(device))

    def among(self, pool: Int64[Tensor, " pool"]) -> FurtherPassages:
        """Those of some documents, ascending; owners are places in `pool`."""
        at = torch.searchsorted(pool, self.owners).clamp_max(len(pool) - 1)
        inside = pool[at] == self.owners
        return FurtherPassages(self.embeddings[inside], at[inside])

    def taken(
        self,
        folded: Float[Tensor, "batch heads encoder_dim"],
        scores: Float[Tensor, "batch heads documents"],
    ) -> tuple[Float[Tensor, "batch heads documents"], Int64[Tensor, "batch heads documents"]]:
        """Scores of first passages, raised to those of the best ones, and which these are.

        Passage d is the first one of document d; further ones are numbered behind the documents.
        """
        documents = scores.shape[-1]
        every = torch.cat([scores, product(folded, self.embeddings)], dim=-1)
        best = best_passages(every, self.numbered(documents), documents)
        return every.gather(-1, best), best

    def numbered(self, documents: int) -> Int64[Tensor, " passages"]:
        """The document of each passage, of first ones and then of further ones."""
        return torch.cat([torch.arange(documents, device=self.owners.device), self.owners])

    def beside(self, corpus: Float[Tensor, "documents encoder_dim"]) -> Float[Tensor, "passages encoder_dim"]:
        """All embeddings, first ones and then further ones."""
        return torch.cat([corpus, self.embeddings.to(corpus)]) if self.every is None else self.every

"""Long documents in training: every score over the corpus is that of a document's best passage.

The best passage depends on query and head and is chosen again in every step, as in a search; gradients are
those of the best passage (attention/retrieval/maxp.py). No passage is left out and none is sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention.retrieval.maxp import best_passages
from dsearch.engine import Snapshot
from dsearch.products import product

_MOST_LEVELS = 64  # with longer documents than that, one pass over all passages costs less


class _Level(NamedTuple):
    """The n-th further passages of all documents that have so many."""

    passages: Int64[Tensor, " level"]
    owners: Int64[Tensor, " level"]


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
    _known_levels: list[_Level] = field(default_factory=list, repr=False, compare=False)

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

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> FurtherPassages:
        """The same on a device, the embeddings in this type; in theirs when None."""
        dtype = dtype or self.embeddings.dtype
        if self.owners.device == device and self.embeddings.dtype == dtype:
            return self
        owners = self.owners.to(device)
        if self.every is None:
            return FurtherPassages(self.embeddings.to(device, dtype), owners)
        every = self.every.to(device, dtype)
        return FurtherPassages(every[len(every) - len(owners) :], owners, every)

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
        further = product(folded, self.embeddings)
        raised, best = self.best(scores.detach(), further.detach())
        if scores.requires_grad or further.requires_grad:
            raised = torch.cat([scores, further], dim=-1).gather(-1, best)
        return raised, best

    def raised(
        self,
        scores: Float[Tensor, "batch heads documents"],
        further: Float[Tensor, "batch heads further"],
    ) -> Float[Tensor, "batch heads documents"]:
        """Scores of first passages, raised in place to those of the best ones.

        A pass for each of a document's passages: a third of the time of a reduction by owners.
        """
        if (levels := self._levels()) is None:
            return self.best(scores, further)[0]
        for level in levels:
            more = further.index_select(-1, level.passages)
            scores.index_copy_(-1, level.owners, torch.maximum(more, scores.index_select(-1, level.owners)))
        return scores

    def best(
        self,
        scores: Float[Tensor, "batch heads documents"],
        further: Float[Tensor, "batch heads further"],
    ) -> tuple[Float[Tensor, "batch heads documents"], Int64[Tensor, "batch heads documents"]]:
        """Score and number of each document's best passage; of equal ones the first."""
        documents = scores.shape[-1]
        if (levels := self._levels()) is None:
            every = torch.cat([scores, further], -1)
            best = best_passages(every, self.numbered(documents), documents)
            return every.gather(-1, best), best
        top = scores.clone()
        best = torch.arange(documents, device=scores.device).expand(scores.shape).contiguous()
        for level in levels:
            more, less = further.index_select(-1, level.passages), top.index_select(-1, level.owners)
            number = torch.where(more > less, documents + level.passages, best.index_select(-1, level.owners))
            best.index_copy_(-1, level.owners, number)
            top.index_copy_(-1, level.owners, torch.maximum(more, less))
        return top, best

    def _levels(self) -> list[_Level] | None:
        """First, second, … further passages; None if there are too many."""
        if self._known_levels or not len(self.owners):
            return self._known_levels
        with torch.inference_mode(False):  # rankings ask first, but gradients pass here later
            order = self.owners.argsort(stable=True)
            owners = self.owners[order]
            number = torch.arange(len(owners), device=owners.device) - torch.searchsorted(owners, owners)
            if int(number.max()) >= _MOST_LEVELS:
                return None
            for level in range(int(number.max()) + 1):
                passages = order[number == level]
                self._known_levels.append(_Level(passages, self.owners[passages]))
        return self._known_levels

    def numbered(self, documents: int) -> Int64[Tensor, " passages"]:
        """The document of each passage, of first ones and then of further ones."""
        return torch.cat([torch.arange(documents, device=self.owners.device), self.owners])

    def beside(self, corpus: Float[Tensor, "documents encoder_dim"]) -> Float[Tensor, "passages encoder_dim"]:
        """All embeddings, first ones and then further ones."""
        return torch.cat([corpus, self.embeddings.to(corpus)]) if self.every is None else self.every

"""The further passages of candidates that are long documents, beside their first: what MaxP chooses from.

The first passage of a document stands at its position; the further ones follow behind all candidates, with
owners that say whose they are (see `dsearch.attention.maxp`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.engine.snapshot import NONE, Snapshot


def passages_beside(
    snapshot: Snapshot, positions: Int64[np.ndarray, "batch candidates"], like: Tensor
) -> PassagesBeside | None:
    """The further passages of these candidates, with the type and device of `like`; None: there are none."""
    if snapshot.passages is None or (found := snapshot.passages.beside(positions)) is None:
        return None
    columns, further = found
    embeddings = torch.as_tensor(snapshot.passages.embeddings(further)).to(like)
    first = np.broadcast_to(np.arange(positions.shape[1], dtype=np.int64), positions.shape)
    owners = torch.as_tensor(np.concatenate([first, columns], axis=1)).to(like.device)
    return PassagesBeside(embeddings, owners[:, None], further + snapshot.positions)


class PassagesBeside(NamedTuple):
    """Further passages of the candidates of each query.

    Attributes:
        embeddings: of them, zeros at padding.
        owners: the candidate of each first passage, which is itself, and of each further one.
        further: their keys.
    """

    embeddings: Float[Tensor, "batch extra encoder_dim"]
    owners: Int64[Tensor, "batch one passages"]
    further: Int64[np.ndarray, "batch extra"]

    def owned(self, positions: Int64[np.ndarray, "batch candidates"]) -> Int64[np.ndarray, "batch passages"]:
        """The document's position of each first and further passage; −1 at padding."""
        padded = np.concatenate([positions, np.full((len(positions), 1), NONE, np.int64)], axis=1)
        return np.take_along_axis(padded, self.owners[:, 0].cpu().numpy(), 1)

    def keys(
        self,
        positions: Int64[np.ndarray, "batch candidates"],
        taken: Int64[np.ndarray, "batch heads candidates"],
    ) -> Int64[np.ndarray, "batch heads candidates"]:
        """The keys of the passages that were taken, −1 at −1."""
        every = np.concatenate([positions, self.further], axis=1)[:, None]
        keys = np.take_along_axis(np.broadcast_to(every, (*taken.shape[:2], every.shape[2])), taken, 2)
        return np.where(positions[:, None] == NONE, NONE, keys)

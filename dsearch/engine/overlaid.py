"""A model's overlay in a state of the collection: which positions have changed keys, and how they are found.

An index knows nothing of the few changed keys. So it is asked for the nearest of all *other* documents, and
the changed ones are scored beside it, exactly: together they are what an index of changed keys would give.
Rows that are not visible in the state (deleted, or replaced by another version) have no part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from dsearch.attention.overlay import KeyOverlay
from dsearch.engine.passages import NONE
from dsearch.engine.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Overlaid:
    """The overlay's part of one state.

    Attributes:
        others: the state without the changed documents.
        positions: of these, ascending.
        changes: δ of each.
        keys: their stored embeddings, changed: first passages, then further ones.
        owners: the place in `positions` of each further passage.
    """

    others: Snapshot
    positions: Int64[np.ndarray, " changed"]
    changes: Float[Tensor, "changed encoder_dim"]
    keys: Float32[np.ndarray, "passages encoder_dim"]
    owners: Int64[np.ndarray, " further"]

    @classmethod
    def of(cls, state: Snapshot, overlay: KeyOverlay | None) -> Overlaid | None:
        """None where no document of the state is in the overlay."""
        if overlay is None:
            return None
        rows = overlay.rows.cpu().numpy()
        at = state.positions_of(rows)
        here = at != NONE
        if state.excluded is not None:
            here[here] = ~state.excluded[at[here]]
        if not here.any():
            return None
        order = np.argsort(at[here])
        positions = at[here][order]
        changes = overlay.changes[torch.as_tensor(np.flatnonzero(here)[order])]
        by_place = changes.detach().cpu().numpy()
        keys = state.embeddings(positions) + by_place
        owners = np.zeros(0, np.int64)
        if state.passages is not None:
            further = np.flatnonzero(np.isin(state.passages.owners, positions))
            owners = np.searchsorted(positions, state.passages.owners[further])
            keys = np.concatenate([keys, state.passages.embeddings(further) + by_place[owners]])
        others = state.without(rows[here], state.sequence)
        return cls(others, positions, changes, keys.astype(np.float32), owners)

    def at(self, positions: Int64[np.ndarray, "*shape"], like: Tensor) -> Float[Tensor, "*shape encoder_dim"]:
        """δ at each position, zeros where there is none."""
        place = np.minimum(np.searchsorted(self.positions, positions), len(self.positions) - 1)
        here = torch.as_tensor(self.positions[place] == positions).to(like.device)
        changes = self.changes.to(like)[torch.as_tensor(place).to(like.device)]
        return changes.masked_fill(~here[..., None], 0.0)

    def nearest(
        self, folded: Float32[np.ndarray, "batch encoder_dim"], k: int
    ) -> Int64[np.ndarray, "batch k"]:
        """The positions of the changed documents of highest inner product, long ones by the best passage."""
        scores = folded @ self.keys.T
        count = len(self.positions)
        best = scores[:, :count].copy()
        np.maximum.at(best.T, self.owners, scores[:, count:].T)
        order = np.argsort(-best, axis=1, kind="stable")[:, :k]
        return self.positions[order]

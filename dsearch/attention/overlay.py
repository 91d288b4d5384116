"""Changes to the keys of single documents: what a projection, which moves all keys alike, cannot say.

    k_d = W_K (e_d + δ_d)      |δ_d| ≤ bound      δ_d = 0 for every document but the few in the overlay

An embedding has length 1, so a bound of .2 turns it by 12 degrees at most. A change is of what a document's
key is computed from, so it folds as every key does: q · k_d = (W_Kᵀ q) · (e_d + δ_d). A document of several
passages has one δ for all of them. Values stay W_V e_d.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention.scores import length
from dsearch.errors import DimensionMismatch, InvalidRequest

LARGEST_BOUND = 1.0
_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class KeyOverlay:
    """Bounded changes to keys of documents, by the store's rows.

    Attributes:
        rows: of the documents, ascending. A row is one version of a document: another text, another row.
        changes: δ of each.
        bound: no change is longer.

    Raises:
        DimensionMismatch: not one change a row.
        InvalidRequest: rows that do not ascend, a bound outside 0 to 1, a change that is longer.
    """

    rows: Int64[Tensor, " changed"]
    changes: Float[Tensor, "changed encoder_dim"]
    bound: float

    def __post_init__(self) -> None:
        if self.changes.ndim != 2 or len(self.rows) != len(self.changes):
            raise DimensionMismatch(
                f"{len(self.rows)} rows with changes of shape {list(self.changes.shape)}; give one for each"
            )
        if not 0 < self.bound <= LARGEST_BOUND:
            raise InvalidRequest(f"bound={self.bound}; use a number above 0, at most {LARGEST_BOUND:g}")
        if (self.rows[1:] <= self.rows[:-1]).any():
            raise InvalidRequest("rows of an overlay that do not ascend; sort them, each once")
        longest = length(self.changes).max().item() if len(self.rows) else 0.0
        if not longest <= self.bound * (1 + _TOLERANCE):  # NaN is too long
            raise InvalidRequest(f"a change of length {longest:.4g} above the bound of {self.bound:g}")

    def __len__(self) -> int:
        return len(self.rows)


def bounded(
    changes: Float[Tensor, "changed encoder_dim"], bound: float
) -> Float[Tensor, "changed encoder_dim"]:
    """The nearest changes that are no longer than the bound."""
    lengths = length(changes).clamp_min(1e-12)
    return changes * (bound / lengths).clamp_max(1.0)


def changes_to_tensors(overlay: KeyOverlay) -> dict[str, Tensor]:
    """As it is saved."""
    return {
        "rows": overlay.rows.cpu().contiguous(),
        "changes": overlay.changes.detach().cpu().float().contiguous(),
        "bound": torch.tensor(overlay.bound, dtype=torch.float64),
    }


def overlay_from_tensors(tensors: dict[str, Tensor]) -> KeyOverlay:
    """As it was saved."""
    return KeyOverlay(tensors["rows"], tensors["changes"], float(tensors["bound"]))

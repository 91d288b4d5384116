"""Parts of a layer that stand by themselves: values by position, the order of hits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.engine.ranking.second_stage import StageTerms
from dsearch.engine.snapshot.snapshot import NONE
from dsearch.errors import DimensionMismatch, InvalidRequest
from dsearch.types import Mode


def check_texts(queries: int, texts: Sequence[str] | None, mode: Mode, match_field: str | None) -> None:
    """Raise InvalidRequest for texts that are not one a query, or are missing where they are compared."""
    if texts is not None and len(texts) != queries:
        raise InvalidRequest(f"{len(texts)} texts for {queries} query states; give one each")
    if texts is None and match_field is not None:
        raise InvalidRequest(f"a match of {match_field!r} without texts; give the texts to be compared")
    if texts is None and mode == "keyword":
        raise InvalidRequest("mode='keyword' without texts; give the words of each query")


def check_values(values: Tensor | None, positions: int) -> None:
    """Raise DimensionMismatch for values that are not a row for each position."""
    if values is not None and (values.ndim != 2 or len(values) != positions):
        raise DimensionMismatch(
            f"values of shape {list(values.shape)}; use [{positions}, value_dim], "
            "a row for each position of the snapshot"
        )


def check_bias(bias: Tensor | None, positions: int) -> None:
    """Raise DimensionMismatch for a bias that is not a number for each position."""
    if bias is not None and bias.shape != (positions,):
        raise DimensionMismatch(
            f"a bias of shape {list(bias.shape)}; use [{positions}], a number for each position"
        )


def rows_at(
    values: Float[Tensor, "positions value_dim"], positions: Int64[np.ndarray, "batch candidates"]
) -> Float[Tensor, "batch candidates value_dim"]:
    """The value at each position; zeros at −1, whatever the values are."""
    if len(values) == 0:
        return values.new_zeros(*positions.shape, values.shape[1])
    at = torch.as_tensor(positions).to(values.device)
    return values[at.clamp_min(0)].masked_fill((at == NONE).unsqueeze(-1), 0.0)


def by_score_then_position(
    scores: Float[Tensor, "batch candidates"], second: StageTerms | None
) -> Int64[Tensor, "batch candidates"]:
    """The order of hits: by score, ties by position; of equals those first that a second stage looked at.

    Proposals ascend, so stable sorts do.
    """
    if second is None:
        return scores.detach().sort(dim=1, descending=True, stable=True).indices
    outside = torch.as_tensor(~second.inside).to(scores.device)
    first = outside.sort(dim=1, stable=True).indices
    order = scores.detach().gather(1, first).sort(dim=1, descending=True, stable=True).indices
    return first.gather(1, order)

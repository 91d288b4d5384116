"""`RemoteOutput`: the result of a `RemoteSearch`, and how an answer becomes its tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention import mix, pool, with_zero_gradient
from dsearch.engine import UNTRAINED
from dsearch.engine.search.attend import rows_of_candidates
from dsearch.errors import DimensionMismatch, InvalidRequest
from dsearch.results import Attention
from dsearch.types import Stamp

ValuesOf = Callable[[list[list[str]]], Float[Tensor, "batch candidates value_dim"]]
Values: TypeAlias = "Float[Tensor, 'positions value_dim'] | str | ValuesOf"


class RemoteOutput(NamedTuple):
    """Result of attention over the candidates, sorted by weight, best first, padding last.

    Attributes:
        context: Σ_d weight(q, d) v_d.
        weights: the mixture of the heads' weights; zeros behind a query's last candidate.
        ids: ids of each query's candidates.
        scores: the order of hits; −∞ behind the last candidate.
        dense: dense scores by head; without gradient if `vjp` computes it.
        keyword: keyword scores by head.
        head_weights: each head's weights, a softmax unless `pooling` differs; gradient as of `dense`.
        stamp: identity of the state that answered.
        positions: of the candidates in that state; -1 behind a query's last candidate.
        texts: of each query's candidates, if they were asked for.
        documents: number of documents that share each query's attention.
        covered_mass: share of the attention over all documents that is theirs. Without gradient.
        memory: part of the scores from past queries; None without a query memory. Without gradient.
        output: output projection of the context; None if the head has none, or other values are pooled.
    """

    context: Float[Tensor, "batch value_dim"]
    weights: Float[Tensor, "batch candidates"]
    ids: list[list[str]]
    scores: Float[Tensor, "batch candidates"]
    dense: Float[Tensor, "batch heads candidates"]
    keyword: Float[Tensor, "batch heads candidates"]
    head_weights: Float[Tensor, "batch heads candidates"]
    stamp: Stamp
    positions: Int64[np.ndarray, "batch candidates"]
    texts: list[list[str]] | None = None
    documents: Int64[np.ndarray, " batch"] | None = None
    covered_mass: Float[Tensor, " batch"] | None = None
    memory: Float[Tensor, "batch candidates"] | None = None
    output: Float[Tensor, "batch output_dim"] | None = None


class PooledThere(NamedTuple):
    """Values that the server pools: a field by name, or a row for each position; neither: W_V e."""

    field: str | None = None
    table: Float[Tensor, "positions value_dim"] | None = None

    @classmethod
    def of(cls, values: Values | None, *, everywhere: bool) -> PooledThere:
        """A field, and over all documents a tensor: the candidates' rows are not enough then."""
        if isinstance(values, str):
            return cls(field=values)
        return cls(table=values) if everywhere and isinstance(values, Tensor) else cls()

    @property
    def nothing(self) -> bool:
        """True if the server pools W_V e."""
        return self.field is None and self.table is None

    def options(self) -> dict[str, Any]:
        """Options of the request."""
        table = None if self.table is None else self.table.detach().double().cpu().numpy()
        return {"field": self.field, "table": table}


def empty_output(states: Float[Tensor, "batch encoder_dim"], version: str | None) -> RemoteOutput:
    """The result of no query at all, for which no state was asked."""
    stamp = Stamp(0, version or UNTRAINED, 0)
    nothing = states.new_zeros(0, 0)
    by_head = states.new_zeros(0, 1, 0)
    positions = np.zeros((0, 0), np.int64)
    context = with_zero_gradient(states.new_zeros(states.shape), states)
    return RemoteOutput(context, nothing, [], nothing, by_head, by_head, by_head, stamp, positions)


def tensor_like(array: Any, like: Tensor) -> Tensor:
    """Return an array as a tensor of the type and on the device of another."""
    return torch.tensor(array, dtype=like.dtype, device=like.device)


def candidate_mask(attention: Attention, like: Tensor) -> Tensor:
    """True where there is a candidate."""
    counts = torch.tensor([len(line) for line in attention.ids], device=like.device)
    return torch.arange(attention.weights.shape[1], device=like.device) < counts[:, None]


def pooled_by_head(head_weights: Tensor, mixture: Tensor, values: Tensor) -> Float[Tensor, "batch value_dim"]:
    """The context; values by head where heads have found a document by different passages of it."""
    if values.ndim == 3:
        return pool(mix(head_weights, mixture).unsqueeze(1), values).squeeze(1)
    return torch.einsum("h,bhc,bhcv->bv", mixture, head_weights, values)


def rows_at(
    values: Float[Tensor, "positions value_dim"], positions: Int64[np.ndarray, "batch candidates"]
) -> Float[Tensor, "batch candidates value_dim"]:
    """The value at each position; zeros at -1."""
    least = int(positions.max(initial=-1)) + 1
    if values.ndim != 2 or len(values) < least:
        raise DimensionMismatch(
            f"values of shape {list(values.shape)}; use [positions, value_dim], a row for each position of "
            f"the state that answers, which has {least} or more"
        )
    at = torch.as_tensor(positions, device=values.device)
    if not len(values):
        return values.new_zeros(*positions.shape, values.shape[1])
    return values[at.clamp_min(0)].masked_fill((at < 0).unsqueeze(-1), 0.0)


def in_sequences(output: RemoteOutput, shape: Sequence[int]) -> RemoteOutput:
    """An output of batch · steps queries as one of sequences."""
    batch, steps = shape
    changed: dict[str, Any] = {}
    for name, part in output._asdict().items():
        if isinstance(part, Tensor | np.ndarray):
            changed[name] = part.reshape(batch, steps, *part.shape[1:])
        elif isinstance(part, list):
            changed[name] = [part[at * steps : (at + 1) * steps] for at in range(batch)]
    return output._replace(**changed)


def rows_of_ids(
    values: Values, ids: list[list[str]], mask: Tensor
) -> Float[Tensor, "batch candidates value_dim"]:
    """The caller's values, zeros where there is no candidate.

    Raises:
        InvalidRequest: not a row for each candidate.
    """
    if not callable(values):
        raise InvalidRequest(
            f"values of type {type(values).__name__}; give a field's name, a function of ids, or a tensor"
        )
    return rows_of_candidates(values(ids), mask)

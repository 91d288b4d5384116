"""Hard attention over a collection with rewards that come later: draw documents, be rewarded, learn.

    p(d | q) = weight(q, d) / Σ weight                 over the candidates of the query
    a_s ~ p(· | q)                                     draws, independent of each other
    ∇ E[r] ≈ 1/S Σ_s (r_s − b_s) ∇ log p(a_s | q)      REINFORCE, see attention/hard_attention.py

A draw waits in memory for its rewards, which name it; the gradient is computed in the state that it was made
from. The head then takes a step and goes on as a draft head, which the next draw names; or the gradient is
returned.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention.adam import Adam, Moments
from dsearch.attention.hard_attention import reinforce_loss, sample
from dsearch.attention.retrieval.head import Head
from dsearch.engine.models.drafts import EXPIRY_S
from dsearch.engine.models.tensors import require_head_alone
from dsearch.engine.options import DEFAULT_SAMPLES
from dsearch.engine.ranking.layer import SearchLayer
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.search.gradients import GradientQuery, layer_of
from dsearch.engine.state.state import CollectionState
from dsearch.errors import InvalidRequest, amount
from dsearch.types import DrawResult, QueryDraws, RewardResult

SAMPLES = (2, 64)  # of a query
MAX_QUERIES = 64
MAX_LEARNING_RATE = 1.0
_LARGEST_REWARD = 1e6


@dataclass(frozen=True, slots=True)
class PendingDraw:
    """A draw that waits for its rewards.

    Attributes:
        query: the queries, with their states and the stamp of the state that answered.
        places: of the draws among each query's candidates; −1 where there is none.
    """

    query: GradientQuery
    places: Int64[Tensor, "batch samples"]


def draw(
    collection: CollectionState, query: GradientQuery, samples: int = DEFAULT_SAMPLES, seed: int | None = None
) -> DrawResult:
    """Draw documents of each query with the probability of their weights.

    Args:
        collection: what is attended to.
        query: queries and options, as for `attention_parts`.
        samples: documents to draw of each query, with replacement; the baseline of the gradient needs two.
        seed: random seed; another draw each time when None.

    Raises:
        InvalidRequest: samples out of range, too many queries; as `attention_parts`.
        DimensionMismatch, ModelNotFound, Gone, Conflict.
    """
    low, high = SAMPLES
    if not low <= samples <= high:
        raise InvalidRequest(f"samples={samples}; use {low} to {high}")
    layer, stamp, states, texts = layer_of(collection, query)
    if len(states) > MAX_QUERIES:
        raise InvalidRequest(f"{amount(len(states), 'query')}; draw for at most {MAX_QUERIES} at once")
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    with torch.inference_mode():
        output = layer(states, texts)
        log_weights = _log_weights(output)
        places = sample(log_weights.exp(), samples, generator)
    pinned = replace(query, stamp=stamp, model=None)
    size = places.nbytes + _bytes_of(query, layer)
    token = collection.draws.add(PendingDraw(pinned, places.clone()), query.owner, size)
    some = (places >= 0).any(1).numpy()  # of a query without candidates there is no draw
    positions = np.full(places.shape, -1)
    if output.positions.shape[1]:
        positions[some] = np.take_along_axis(output.positions, places.clamp_min(0).numpy(), 1)[some]
    ids = collection.ids_at(layer.snapshot, positions)
    rows = [
        QueryDraws(ids[at], positions[at].tolist(), log_weights[at, places[at]].double().numpy().tolist())
        if some[at]
        else QueryDraws([], [], [])
        for at in range(len(places))
    ]
    return DrawResult(token, stamp, rows, EXPIRY_S, query.draft)


def reward(
    collection: CollectionState,
    token: str,
    rewards: Sequence[Sequence[float]],
    *,
    owner: str = "",
    learning_rate: float | None = None,
    gradients: bool = False,
) -> RewardResult:
    """Reward the documents of a draw, once: the head takes a step, or the gradient is returned, or both.

    Args:
        collection: that was drawn from.
        token: name of the draw.
        rewards: a number for each document of each query, in the order of the draw.
        owner: who drew.
        learning_rate: of Adam, whose moments go on with the draft; None: the head takes no step.
        gradients: whether the gradients of −(expected reward) by states and head are returned.

    Raises:
        InvalidRequest: neither a step nor gradients; rewards of another shape, or that are not finite.
        Gone: the draw was rewarded already, expired, or is of another owner; its state or draft is gone.
        Conflict: a step from a version of which the head is only a part.
    """
    if learning_rate is None and not gradients:
        raise InvalidRequest("neither learning_rate nor include; give one of them, or both")
    if learning_rate is not None and not 0 < learning_rate <= MAX_LEARNING_RATE:
        raise InvalidRequest(f"learning_rate={learning_rate}; use a number above 0 and up to 1")
    pending: PendingDraw = collection.draws.get(token, owner).item
    values = _checked(rewards, pending.places)
    query = pending.query
    layer, stamp, states, texts = layer_of(collection, query)
    record = collection.store.model(stamp.model).record
    if learning_rate is not None and "memory" in record:
        require_head_alone(stamp.model, record)
    states = states.detach().clone().requires_grad_()
    with torch.enable_grad():
        log_weights = _log_weights(layer(states, texts))
        loss = reinforce_loss(log_weights, pending.places, values.to(log_weights)).mean()
    head = dict(layer.head.named_parameters())
    derivatives = [torch.zeros_like(tensor) for tensor in (states, *head.values())]
    if loss.requires_grad:  # hard and uniform pooling are flat
        inputs = [states, *head.values()]
        derivatives = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
    of_states, of_head = derivatives[0], dict(zip(head, derivatives[1:], strict=True))
    stepped = None if learning_rate is None else _stepped(collection, query, layer, of_head, learning_rate)
    collection.draws.take(token, owner)  # after all that may be refused: it can be rewarded otherwise then
    draft = None
    if stepped is not None:
        draft = collection.drafts.add(stepped.head, stamp.model, query.owner, stepped.moments).id
    present = pending.places >= 0
    mean = float(values[present].mean()) if present.any() else 0.0
    if not gradients:
        return RewardResult(stamp, mean, draft)
    arrays = {name: gradient.numpy() for name, gradient in of_head.items()}
    return RewardResult(stamp, mean, draft, of_states.numpy(), arrays)


@dataclass(frozen=True, slots=True)
class _Stepped:
    """A head after a step, with the moments of its optimizer."""

    head: Head
    moments: Moments


def _stepped(
    collection: CollectionState,
    query: GradientQuery,
    layer: SearchLayer,
    gradients: dict[str, Tensor],
    learning_rate: float,
) -> _Stepped:
    """Take a step of Adam with a copy of the head."""
    head = copy.deepcopy(layer.head).float()
    moments = None
    if query.draft is not None:
        moments = collection.drafts.get(query.draft, query.owner).moments
    names = [name for name, _ in head.named_parameters()]
    optimizer = Adam([{"params": list(head.requires_grad_().parameters()), "lr": learning_rate}])
    if moments is not None:
        optimizer.load_moments(moments)
    for name, parameter in zip(names, head.parameters(), strict=True):
        parameter.grad = gradients[name].to(parameter)
    optimizer.step()
    if not all(parameter.isfinite().all() for parameter in head.parameters()):
        raise InvalidRequest("a step to numbers that are not finite; use smaller rewards or learning_rate")
    optimizer.zero_grad()
    return _Stepped(head.eval(), optimizer.moments())


def _bytes_of(query: GradientQuery, layer: SearchLayer) -> int:
    """About what a query takes in memory."""
    states = 0 if query.states is None else query.states.nbytes
    head = 0 if query.with_head is None else sum(tensor.nbytes for tensor in layer.head.parameters())
    return 4096 + states + head + 4 * sum(map(len, query.texts or []))


def _log_weights(output: SearchOutput) -> Float[Tensor, "batch candidates"]:
    """Logarithm of the candidates' shares among themselves; −inf where there is none."""
    total = output.weights.sum(1, keepdim=True)
    shares = output.weights / total.clamp_min(torch.finfo(total.dtype).tiny)
    nothing = shares <= 0
    return torch.where(nothing, 1.0, shares).log().masked_fill(nothing, -torch.inf)


def _checked(
    rewards: Sequence[Sequence[float]], places: Int64[Tensor, "batch samples"]
) -> Float[Tensor, "batch samples"]:
    """Rewards as a matrix, zeros where nothing was drawn."""
    if len(rewards) != len(places):
        raise InvalidRequest(
            f"rewards of {amount(len(rewards), 'query')} for a draw of {len(places)}; give a row each"
        )
    values = torch.zeros(places.shape, dtype=torch.float64)
    for at, row in enumerate(rewards):
        count = int((places[at] >= 0).sum())
        if len(row) != count:
            raise InvalidRequest(
                f"rewards.{at} has {amount(len(row), 'number')} for {amount(count, 'document')}; give one "
                "each, in the order of "
                "the draw"
            )
        if not all(math.isfinite(number) and abs(number) <= _LARGEST_REWARD for number in row):
            raise InvalidRequest(f"rewards.{at}: use finite numbers, up to {_LARGEST_REWARD:g} in size")
        if row:
            values[at] = torch.tensor(row, dtype=torch.float64)
    return values

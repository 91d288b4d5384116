"""Query memory: attention over the queries that were judged before.

Past queries are keys, their judgements are values, and a null key stands for "nothing like it was asked":

    a = softmax over i of (q · q_i / τ, c / τ)           i: the nearest past queries
    r(j) = Σ_i a_i R_ij                                  R_ij: grade of document j for query i, its best = 1
    M(q, d) = r(d) if d was judged, else λ Σ_n w_dn r(n)
    logit = (q_h · k_d + w_h b(q, d) + γ M(q, d)) / t    the same M for all heads

Query states are compared at unit length, as the encoder gives them. A document that no past query judged
borrows from its `NEIGHBOURS` nearest judged documents n, with weights w = softmax(e_d · e_n / `LENDING`): a
nearest-neighbour regression in the manner of Nadaraya and Watson. A null key at `LENDING_LEVEL` keeps
documents that are unlike all judged ones from borrowing, which matters where few are judged. λ from 0 to 1 is
chosen with γ, τ and c: where a question has one answer, its neighbours are wrong.

With γ = 0, the start, nothing changes. No number belongs to a single document or query, so τ, c and γ can be
chosen by leaving each query's own row out; `above` also leaves out rows that are nearly the same query.

Only the nearest past queries share the attention: among very many the remote ones, each with next to nothing,
would together outweigh the null key. So its cost hardly grows with their number. Keys are stored in 8 bits,
rounded once: what is served is what was evaluated.

Anybody may send outcomes and clicks. The rows of sender u, an API key or a client, share at most `KEY_SHARE`
of a query's attention; the null key gets what is cut off:

    a'_i = a_i · min(1, KEY_SHARE / Σ_{j of u} a_j)

So u changes no score by more than γ · `KEY_SHARE`, however many rows it has. Judgements are trusted: no cap.
Grades below 0 are of documents that were seen and left.

The idea is that of key-value memory networks (Miller et al. 2016, arXiv:1606.03126, eq. 1 to 4) with fixed
keys and values, and of nearest-neighbour language models (Khandelwal et al. 2020, arXiv:1911.00172), which
attend to the nearest ones as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int64

from dsearch.attention.arrays import (
    Array,
    as_like,
    at_least,
    broadcast,
    concat,
    fill,
    gather,
    numbers_of,
    on_device_of,
    places_of_largest,
    product,
    repeat,
    softmax,
    totals,
    unit,
    zeros,
)
from dsearch.attention.memory_rows import TRUSTED, Indexes, MemoryRows, Setting

NEAREST = 64  # past queries that share the attention of a query
NEIGHBOURS = 5
LENDING = 0.03  # temperature of the borrowing weights, chosen on training queries (guide decisions)
LENDING_LEVEL = 0.5  # cosine of the null key of borrowing: of judged documents that are less alike, little
KEY_SHARE = 0.5  # of a query's attention, at most of the rows of one sender
_BLOCK = 8192  # keys that are numbers of full length together


class Recalled(NamedTuple):
    """The past queries that some queries attend to.

    Attributes:
        rows: their numbers.
        weights: γ a of each; the null key has the rest.
        relevance: γ r of each judged document.
    """

    rows: Int64[Array, "batch near"]
    weights: Float[Array, "batch near"]
    relevance: Float[Array, "batch documents"]


class MemoryFormulas(MemoryRows):
    """Recall of past queries, for tensors and for NumPy arrays."""

    def recalled(self, states: Float[Array, "batch encoder_dim"], *, above: float | None = None) -> Recalled:
        """Recall past queries, with γ a of each and γ r of the documents; see `attention`."""
        rows, weights = self.attention(states, above=above)
        weights = self.strength * weights
        return Recalled(rows, weights, self.relevance(rows, weights))

    def attention(
        self, states: Float[Array, "batch encoder_dim"], *, above: float | None = None
    ) -> tuple[Int64[Array, "batch near"], Float[Array, "batch near"]]:
        """The nearest past queries and a of each; the null key has the rest.

        Args:
            states: query embeddings.
            above: past queries of at least this cosine are left out; None leaves none out.
        """
        rows, cosines = self._nearest(unit(states), above)
        null = zeros((len(states), 1), cosines) + self.null_level / self.temperature
        weights = softmax(concat([cosines / self.temperature, null], 1), -1)[:, :-1]
        return rows, capped(weights, self.senders[rows]) if self._capped else weights

    def relevance(
        self, rows: Int64[Array, "batch near"], weights: Float[Array, "batch near"]
    ) -> Float[Array, "batch documents"]:
        """Σ_i weight_i R_ij of each judged document j."""
        batch, near = rows.shape
        # Indices have no gradients, and NumPy takes a tenth of the time for a few hundred of them.
        starts, past = numbers_of(self.starts), numbers_of(rows).ravel()
        first = starts[past]
        counts = starts[past + 1] - first
        ends = counts.cumsum()
        pairs = np.arange(ends[-1] if len(ends) else 0) + (first - (ends - counts)).repeat(counts)
        at = on_device_of(pairs, weights)
        parts = repeat(weights.reshape(-1), counts) * as_like(self.grades[at], weights)
        places = self.of_document[at]
        if batch > 1:
            line = np.arange(batch, dtype=np.int64).repeat(near).repeat(counts) * self.documents
            places = places + on_device_of(line, weights)
        return totals(parts, places, batch * self.documents).reshape(batch, self.documents)

    def _nearest(
        self, states: Float[Array, "batch encoder_dim"], above: float | None
    ) -> tuple[Int64[Array, "batch near"], Float[Array, "batch near"]]:
        """The nearest past queries and their cosines, −inf for those that are left out."""
        most = min(NEAREST, len(self))
        if self.index is None or above is not None:
            cosines = self._cosines(states, 0)
            if above is not None:
                cosines = fill(cosines, cosines >= above, -math.inf)
            if most == len(self):
                return broadcast(on_device_of(np.arange(most), states), cosines.shape), cosines
            best = places_of_largest(cosines, most)
            return best, gather(cosines, best, 1)
        near = self.index.nearest(numbers_of(states).astype(np.float32, copy=False), most)
        missing = near.min(initial=0) < 0
        at = np.maximum(near, 0) if missing else near
        numbers = on_device_of(at.reshape(-1), states)
        keys = as_like(self.keys[numbers], states).reshape(*at.shape, -1)
        cosines = (keys @ states[..., None])[..., 0]
        cosines = cosines * as_like(self.key_scales[numbers], states).reshape(at.shape)
        if missing:
            cosines = fill(cosines, on_device_of(near < 0, states), -math.inf)
        if len(self.index) < len(self):  # rows since it was built are compared beside it
            later = np.arange(len(self.index), len(self))
            at = np.concatenate([at, np.broadcast_to(later, (len(at), len(later)))], axis=1)
            cosines = concat([cosines, self._cosines(states, len(self.index))], 1)
        best = places_of_largest(cosines, most)
        return gather(on_device_of(at, states), best, 1), gather(cosines, best, 1)

    def _cosines(
        self, states: Float[Array, "batch encoder_dim"], start: int
    ) -> Float[Array, "batch queries"]:
        """Cosines with the past queries from `start` on."""
        ends = [*range(start, len(self), _BLOCK), len(self)]
        blocks = [zeros((len(states), 0), states)]
        for first, end in pairwise(ends):
            scales = as_like(self.key_scales[first:end], states)
            keys = as_like(self.keys[first:end], states) * scales[:, None]
            blocks.append(product(states, keys))
        return concat(blocks, 1)


class FixedMemory(MemoryFormulas):
    """A query memory in NumPy that does not change: it recalls as the `QueryMemory` of the same rows."""

    def _fill(
        self,
        parts: dict[str, np.ndarray],
        texts: Sequence[str] | None,
        setting: Setting,
        indexes: Indexes = (None, None),
    ) -> None:
        for name, part in parts.items():
            setattr(self, name, part)
        self.texts = None if texts is None else list(texts)
        self.index, self.lenders = indexes
        self._capped = bool((self.senders != TRUSTED).any())
        self._parts = parts
        self.strength, self._temperature, self.null_level, self.lending = setting

    def __call__(self, states: Float[Array, "batch encoder_dim"]) -> Recalled:
        """Recall past queries; see `recalled`."""
        return self.recalled(states)

    @property
    def temperature(self) -> float:
        """τ."""
        return self._temperature

    @property
    def setting(self) -> Setting:
        """γ, τ, c and λ."""
        return self.strength, self._temperature, self.null_level, self.lending

    def parts(self) -> dict[str, np.ndarray]:
        """Everything but texts and setting, as arrays."""
        return self._parts

    def with_setting(
        self, strength: float, temperature: float, null_level: float, lending: float = 1.0
    ) -> FixedMemory:
        """Return the same memory with other γ, τ, c and λ; rows are shared."""
        other = copy(self)
        other.strength, other._temperature, other.null_level, other.lending = (
            strength,
            temperature,
            null_level,
            lending,
        )
        return other


def capped(
    weights: Float[Array, "batch near"], senders: Int64[Array, "batch near"]
) -> Float[Array, "batch near"]:
    """Attention in which no sender has more than `KEY_SHARE`; within its rows the proportions stay."""
    same = (senders[:, :, None] == senders[:, None]) & (senders != TRUSTED)[:, None]
    total = (as_like(same, weights) * weights[:, None]).sum(-1)
    return weights * (KEY_SHARE / at_least(total, KEY_SHARE))

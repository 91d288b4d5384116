"""`FixedHead`: a head to search with, in NumPy; and the formulas that it shares with `Head`, which learns.

A search needs numbers and no gradients, so all versions but those with a learned score are served without
torch. `FixedHead.of_tensors` says which ones are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from jaxtyping import Float

from dsearch.attention.arrays import Array, broadcast, exp, gelu, length, softmax, unit
from dsearch.attention.late_interaction import TENSORS, FixedStage, RerankerIdentity
from dsearch.errors import DimensionMismatch

if TYPE_CHECKING:
    from dsearch.attention.scores import Score

START_TEMPERATURE = 0.05
START_KEYWORD_WEIGHT = 1.0
_ZERO_AT_START = {  # parameters of each query side; while they are zeros, q_h = e_q
    "linear": ("query_delta",),
    "low-rank": ("query_in",),
    "mlp": ("query_in", "query_bias"),
}
_LEARNED = ("query_delta", "query_out", "query_in", "query_bias", "key_delta", "value_delta")
_NUMBERS = ("keyword_weight", "log_temperature", "mixture_logits", "hop_strength", "bm25")
_OF_STAGE = "second_stage."
_STAGE = tuple(_OF_STAGE + name for name in TENSORS)
_EXCITATION = ("excitation.squeeze", "excitation.excite")
_OUTPUT = ("output.weight", "output.bias")  # of the pooled context, which is no part of a ranking


class HeadFormulas:
    """The formulas of a head (head.py), for tensors and for NumPy arrays."""

    encoder_dim: int
    heads: int
    query_side: str
    memory: Any  # a memory; None without one
    second_stage: Any  # a second stage; None without one
    excitation: Any  # shares of the heads by the query; None for constant ones

    if TYPE_CHECKING:  # parameters of a `Head`, arrays of a `FixedHead`
        query_delta: Any
        query_out: Any
        query_in: Any
        query_bias: Any
        key_delta: Any
        value_delta: Any
        output: Any
        keyword_weight: Any
        log_temperature: Any
        mixture_logits: Any
        hop_strength: Any
        bm25: Any

    def settle(self) -> Self:
        """Prepare for search only, and return itself."""
        return self

    def remembering(self, memory: Any) -> Self:
        """Return a head with this memory that shares all other parameters."""
        other = copy(self)
        other.memory = memory
        return other

    @property
    def temperature(self) -> Float[Array, ""]:
        """t > 0: score / temperature = logit."""
        return exp(self.log_temperature)

    @property
    def mixture(self) -> Float[Array, " heads"]:
        """m_h: the share of each head, summing to 1; without an excitation."""
        return softmax(self.mixture_logits, -1)

    def mixture_of(
        self, folded: Float[Array, "batch heads encoder_dim"]
    ) -> Float[Array, " heads"] | Float[Array, "batch heads"]:
        """m_h of each query by its excitation; of a head without one the same for all, [heads].

        Args:
            folded: queries in the space of the stored embeddings, after the last hop.
        """
        return self.mixture if self.excitation is None else self.excitation(folded, self.mixture_logits)

    @property
    def keyword_weighting(self) -> tuple[float, float] | None:
        """(k1, b) as numbers; None for those of the index."""
        if self.bm25 is None:
            return None
        k1, b = self.bm25.tolist()
        return round(k1, 6), round(b, 6)  # single precision: 0.4 is .4000000059

    @property
    def learned_score(self) -> Score | None:
        """The learned score; None for the inner product."""
        return None

    def queries(self, embeddings: Float[Array, "batch encoder_dim"]) -> Float[Array, "batch heads key_dim"]:
        """q_h = |e_q| · unit(e_q + f_h(e_q)), in key space.

        Raises:
            DimensionMismatch: embeddings of another length.
        """
        if embeddings.ndim != 2 or embeddings.shape[-1] != self.encoder_dim:
            raise DimensionMismatch(
                f"query states of shape {list(embeddings.shape)}; use [batch, {self.encoder_dim}]"
            )
        of_all_heads = embeddings[:, None]
        if all(self._changes_nothing(name) for name in _ZERO_AT_START[self.query_side]):
            if self.heads == 1:
                return of_all_heads
            return broadcast(of_all_heads, (len(embeddings), self.heads, self.encoder_dim))
        return length(of_all_heads) * unit(of_all_heads + self._moved_by(embeddings))

    def fold(self, queries: Float[Array, "*batch key_dim"]) -> Float[Array, "*batch encoder_dim"]:
        """W_Kᵀ q, whose inner product with a stored embedding is that of q with the document's key."""
        return queries if self._changes_nothing("key_delta") else queries + queries @ self.key_delta

    def keys(self, embeddings: Float[Array, "*batch encoder_dim"]) -> Float[Array, "*batch key_dim"]:
        """k = W_K e_d."""
        if self._changes_nothing("key_delta"):
            return embeddings
        return embeddings + embeddings @ self.key_delta.mT

    def values(self, embeddings: Float[Array, "*batch encoder_dim"]) -> Float[Array, "*batch value_dim"]:
        """v = W_V e_d."""
        if self._changes_nothing("value_delta"):
            return embeddings
        return embeddings + embeddings @ self.value_delta.mT

    def _changes_nothing(self, name: str) -> bool:
        """Return True if a projection is known to be the identity."""
        raise NotImplementedError

    def _moved_by(self, embeddings: Float[Array, "batch encoder_dim"]) -> Float[Array, "batch heads key_dim"]:
        """f_h(e), the change of a query by each head before its length is restored."""
        raise NotImplementedError


class FixedHead(HeadFormulas):
    """A head in NumPy that does not change: it ranks as the `Head` of the same numbers.

    Args:
        encoder_dim: length of an embedding.
        tensors: of a head, by name; those that are missing are as at the start.
        heads: number of query heads.
        query_side: form of the query projection.
    """

    def __init__(
        self,
        encoder_dim: int,
        tensors: Mapping[str, np.ndarray] | None = None,
        *,
        heads: int = 1,
        query_side: str = "linear",
    ):
        tensors = {} if tensors is None else tensors
        self.encoder_dim, self.heads, self.query_side = encoder_dim, heads, query_side
        self.keyword_weight = np.full(heads, START_KEYWORD_WEIGHT, np.float32)
        self.log_temperature = np.array(math.log(START_TEMPERATURE), np.float32)
        self.mixture_logits = np.zeros(heads, np.float32)
        self.hop_strength = np.zeros((), np.float32)
        self.bm25 = None
        self.memory = self.second_stage = self.excitation = self.output = None
        for name in (*_LEARNED, *_NUMBERS):
            if name in tensors:
                setattr(self, name, tensors[name])
        self._moving = {name for name in _LEARNED if name in tensors and tensors[name].any()}

    @classmethod
    def of_tensors(
        cls,
        tensors: Mapping[str, np.ndarray],
        *,
        heads: int,
        query_side: str,
        reranker: RerankerIdentity | None = None,
    ) -> FixedHead | None:
        """Return the head of these tensors; None if NumPy does not compute all of its parts.

        A learned score, and what a later release adds, need a `Head`. `reranker` belongs to a second
        stage.
        """
        if set(tensors) - {*_LEARNED, *_NUMBERS, *_OUTPUT, *_STAGE, *_EXCITATION}:
            return None
        head = cls(len(tensors["key_delta"]), tensors, heads=heads, query_side=query_side)
        of_stage = {name.removeprefix(_OF_STAGE): tensors[name] for name in _STAGE if name in tensors}
        if of_stage:
            head.second_stage = FixedStage(of_stage, reranker=reranker)
        if _EXCITATION[0] in tensors:
            parts: dict[str, Any] = {name.partition(".")[2]: tensors[name] for name in _EXCITATION}
            head.excitation = partial(excited_mixture, **parts)
        return head

    def _changes_nothing(self, name: str) -> bool:
        return name not in self._moving

    def _moved_by(self, embeddings: Float[Array, "batch encoder_dim"]) -> Float[Array, "batch heads key_dim"]:
        if self.query_side == "linear":
            return (embeddings @ self.query_delta[0].mT)[:, None]
        hidden = self.query_in @ embeddings.mT  # [heads, rank, batch]
        if self.query_side == "mlp":
            hidden = gelu(hidden + self.query_bias[..., None])
        return (self.query_out @ hidden).transpose(2, 0, 1)


def excited_mixture(
    folded: Float[Array, "*batch heads encoder_dim"],
    mixture_logits: Float[Array, " heads"],
    squeeze: Float[Array, "width encoder_dim"],
    excite: Float[Array, "heads width"],
) -> Float[Array, "*batch heads"]:
    """m_h(q) of an excitation (excitation.py), for queries in the space of the stored embeddings."""
    hidden = gelu(unit(folded.mean(-2)) @ squeeze.mT)
    return softmax(mixture_logits + hidden @ excite.mT, -1)

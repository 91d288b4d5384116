"""A database as attention: keys, values, a query, and a score of how well each key matches the query.

    D = {(k₁, v₁), …, (k_n, v_n)}        exact match: α(q, k) = 1 if q = k, else 0

Keys are strings here, so the score is a comparison of strings; from there on it is the pooling of
`pooling.py`. The code is the same for every size of D, and the answer to a query changes with D.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Generic, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.attention.pooling import hard, soft
from dsearch.errors import InvalidRequest

Value = TypeVar("Value")
Match = Literal["exact", "approximate"]


@dataclass(frozen=True, slots=True)
class Answer(Generic[Value]):
    """Value, its key, and the attention weight of that key."""

    value: Value
    key: str
    weight: float


class Database(Generic[Value]):
    """Values under string keys, looked up by exact or approximate match.

    Args:
        pairs: mapping of keys to values; read at every query, so changes show at once.
    """

    def __init__(self, pairs: Mapping[str, Value]):
        self.pairs = pairs

    def ask(self, query: str, match: Match = "exact") -> Answer[Value] | None:
        """The best key's value, or None when no key has anything in common with the query.

        Raises:
            InvalidRequest: an unknown kind of match.
        """
        weights = self.weights(query, match)
        if not bool(weights.any()):
            return None
        best = int(weights.argmax())
        key = list(self.pairs)[best]
        return Answer(self.pairs[key], key, float(weights[best]))

    def weights(self, query: str, match: Match = "exact") -> Float[Tensor, " keys"]:
        """One-hot attention over the keys in their order; all zero when none answers."""
        if match == "exact":
            return soft(_logits([1.0 if key == query else 0.0 for key in self.pairs]))
        if match == "approximate":
            return hard(_logits([similarity(query, key) for key in self.pairs]))
        raise InvalidRequest(f"match={match!r}; use exact or approximate")


def similarity(query: str, key: str) -> float:
    """2 · M / T with M the characters in matching blocks and T those of both strings, in [0, 1].

    Gestalt pattern matching (Ratcliff & Metzener, 1988), as the standard library's `difflib` has it; letter
    case is ignored. Equal strings are at 1, strings without a letter in common at 0.
    """
    return SequenceMatcher(None, query.casefold(), key.casefold(), autojunk=False).ratio()


def _logits(kernel: list[float]) -> Tensor:
    """Logarithms, as the poolings take them: a similarity of 0 is no match at all."""
    return torch.tensor([math.log(alpha) if alpha > 0 else -math.inf for alpha in kernel])

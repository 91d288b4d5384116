"""A database as attention: keys, values, a query, and a score of how well each key matches the query.

    D = {(k₁, v₁), …, (k_n, v_n)}        exact match: α(q, k) = 1 if q = k, else 0

Keys are strings here, so the score is a kernel of strings (`string_kernels.py`, by which a field of the
documents of a collection is matched, too); from there on it is the hard pooling of `pooling.py`. The code is
the same for every size of D, and the answer to a query changes with D. No match is no answer, never the least
bad value: all weights are 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.attention.pooling import hard
from dsearch.attention.string_kernels import normal_form, string_kernel
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
        ignore_case: whether a match ignores upper and lower case.
    """

    def __init__(self, pairs: Mapping[str, Value], *, ignore_case: bool = False):
        self.pairs, self.ignore_case = pairs, ignore_case

    def ask(self, query: str, match: Match = "exact") -> Answer[Value] | None:
        """The best key's value, the first of equally good ones; None when no key answers.

        No key answers an exact match without an equal key, and an approximate one without a common letter.

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
        """One-hot attention over the keys in their order; all zero when none answers.

        Raises:
            InvalidRequest: an unknown kind of match.
        """
        if match not in _KERNELS:
            raise InvalidRequest(f"match={match!r}; use exact or approximate")
        keys = [normal_form(key, ignore_case=self.ignore_case) for key in self.pairs]
        queries = [normal_form(query, ignore_case=self.ignore_case)]
        with np.errstate(divide="ignore"):  # a similarity of 0 is no match at all
            logits = np.log(string_kernel(_KERNELS[match], queries, keys))
        return hard(torch.as_tensor(logits))[0]


_KERNELS = {"exact": "exact_match", "approximate": "fuzzy"}

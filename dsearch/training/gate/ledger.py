"""Ledger of tries: the α that is left for another candidate on held-out queries that judged others before.

Alpha-wealth (Foster and Stine, JRSS B 70:429, 2008): fresh queries have a wealth of 1 in units of the gate's
α. The candidate after c refused ones may spend

    W(c) − W(c + 1)        W(c) = (1 + 2c)^−½

of it, so all candidates that the same queries ever judge spend no more than α together, however many they
are; the first may spend .42 α, the fifth .032 α, the twentieth .004 α. A candidate that passes earns the
wealth back: its queries count no earlier refusal.

The sum bounds the chance that any useless candidate passes as long as refusals say no more than that they are
refusals (Blum and Hardt 2015, "The Ladder"; Dwork et al. 2015, "Generalization in Adaptive Data Analysis and
Holdout Reuse": every bit that a report tells doubles the candidates to account for). Guide `decisions` has
the comparison with e-values and Thresholdout.

New judgements refill the wealth: c is the mean over the held-out queries of the refusals that each has seen,
and a query that was never held out has seen none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from dsearch.errors import InvalidRequest
from dsearch.store import StoredVerdict

_DECAY = 2.0


@dataclass(frozen=True, slots=True)
class Tries:
    """Candidates that the same held-out queries have refused before.

    Attributes:
        count: mean number of refusals over the queries, since the last candidate that passed; 0 for fresh
            ones.

    Raises:
        InvalidRequest: a negative or infinite count.
    """

    count: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.count < float("inf"):
            raise InvalidRequest(f"count={self.count} tries; use a number of at least 0")

    @property
    def left(self) -> float:
        """Share of α that all further candidates together may spend, from 1 down to 0."""
        return (1 + _DECAY * self.count) ** -0.5

    def alpha(self, alpha: float) -> float:
        """Largest p-value that counts as a gain of the next candidate, where fresh queries have `alpha`."""
        return alpha * (self.left - Tries(self.count + 1).left)


def digests_of(texts: Iterable[str]) -> Int64[np.ndarray, " queries"]:
    """Digests of query texts, each once, ascending: the first eight bytes of their SHA-256."""
    heads = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8] for text in texts]
    return np.unique(np.frombuffer(b"".join(heads), "<i8").astype(np.int64))


def tries_on(queries: Int64[np.ndarray, " queries"], verdicts: Sequence[StoredVerdict]) -> Tries:
    """Tries on these queries, by all earlier verdicts in their order.

    Args:
        queries: digests of the held-out queries, ascending, each once.
        verdicts: earlier verdicts of the collection, oldest first.
    """
    if not len(queries):
        return Tries()
    refusals = np.zeros(len(queries))
    for verdict in verdicts:
        judged = np.isin(queries, verdict.queries)
        refusals[judged] = 0 if verdict.passed else refusals[judged] + 1
    return Tries(float(refusals.mean()))

"""`FixedStage`: a learned term of the logit from the tokens of query and document (late interaction).

    m_i(q, d) = max_j q_i t_j                    the best token of d for token i of the query, at least 0
    M(q, d)   = Σ_i a_i m_i^6 / Σ_i a_i          a_i: the idf of its word
    term      = γ M + Σ_f u_f x_f + v r          x: `FEATURES`; u and v start at 0

Khattab & Zaharia 2020, "ColBERT" (arXiv:2004.12832), sum the m_i themselves. With token states that were
never trained for it that sum lost on every collection tried here: nearly every token is somewhat like some
other. The sixth power keeps what is nearly the same word in nearly the same sense.

r is the score of a reranker, a model of its own that reads query and document together, less the mean of the
candidates; a stage without one has no v. No parameter belongs to a document or a query. The module that
learns them is `SecondStage` (retrieval/second_stage.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int64

from dsearch.attention.arrays import Array, as_like, at_most, largest_of_groups, numbers_of, on_device_of

START_STRENGTH = 0.75
POWER = 6
FEATURES = (
    *("dense", "keyword", "sum", "lead", "length", "feedback", "dense_place", "keyword_place"),
    *("leaders", "neighbours"),
)
TENSORS = ("strength", "feature_weights", "reranker_weight")
LEAD = 16  # first tokens of a document, its title among them


class RerankerIdentity(NamedTuple):
    """The reranker that a weight was fitted to; another one's scores have another meaning.

    Attributes:
        name: name on a hub, or path of a folder.
        kind: "cross-encoder" or "multi-vector".
        sha256: digest of its files.
    """

    name: str
    kind: str
    sha256: str


class Interactions(NamedTuple):
    """The tokens of one query and of its candidates.

    Attributes:
        query: states of the query's tokens, in the space of the stored ones.
        weights: a_i, not all 0.
        tokens: of all candidates, one document after the other; times `steps` they are states.
        steps: of each dimension.
        counts: tokens of each candidate.
    """

    query: Float[Array, "query_tokens dims"]
    weights: Float[Array, " query_tokens"]
    tokens: Float[Array, "tokens dims"]
    steps: Float[Array, " dims"]
    counts: Int64[Array, " candidates"]


class Matches(NamedTuple):
    """Matches of one query with its candidates, each in [0, 1].

    Attributes:
        sharp: M.
        sum: the weighted mean of m_i themselves.
        lead: M with the first tokens of the document alone.
    """

    sharp: Float[Array, " candidates"]
    sum: Float[Array, " candidates"]
    lead: Float[Array, " candidates"]


class StageFormulas:
    """γ, u and v, for tensors and for NumPy arrays.

    Attributes:
        strength: γ.
        feature_weights: u, by `FEATURES`.
        reranker: the one that is asked; None without.
        reranker_weight: v; None without one.
    """

    reranker: RerankerIdentity | None
    if TYPE_CHECKING:  # as what they are a stage says
        strength: Any
        feature_weights: Any
        reranker_weight: Any

    @property
    def has_features(self) -> bool:
        """True if features count."""
        return bool(numbers_of(self.feature_weights).any())

    def matches(self, of: Interactions) -> Matches:
        """Match of the query with each candidate; 0 for one without tokens."""
        likeness = (of.query * of.steps) @ of.tokens.mT
        best = largest_of_groups(likeness, of.counts)
        shares = (of.weights / of.weights.sum())[:, None]
        lead = largest_of_groups(*leading(likeness, of.counts))
        return Matches((shares * best**POWER).sum(0), (shares * best).sum(0), (shares * lead**POWER).sum(0))

    def term(
        self, matches: Matches, features: Float[Array, "candidates features"]
    ) -> Float[Array, " candidates"]:
        """γ M + Σ u x; without v r, see `reranked`."""
        # Row by row: a product with a matrix rounds equal rows apart, and equal documents should tie.
        return self.strength * matches.sharp + (features * self.feature_weights).sum(-1)

    def reranked(self, scores: Float[np.ndarray, " candidates"]) -> Float[Array, " candidates"]:
        """v r."""
        assert self.reranker_weight is not None
        return self.reranker_weight * as_like(scores, self.reranker_weight)


class FixedStage(StageFormulas):
    """A second stage in NumPy that does not change: it scores as the `SecondStage` of the same numbers.

    Args:
        tensors: of a stage, by name; those that are missing are as at the start.
        reranker: a model whose scores are one more feature.
    """

    def __init__(
        self, tensors: Mapping[str, np.ndarray] | None = None, *, reranker: RerankerIdentity | None = None
    ):
        self.strength = np.array(START_STRENGTH, np.float32)
        self.feature_weights = np.zeros(len(FEATURES), np.float32)
        self.reranker, self.reranker_weight = reranker, None
        numbers: Mapping[str, np.ndarray] = {} if tensors is None else tensors
        for name in TENSORS:
            if name in numbers:
                setattr(self, name, numbers[name])


def leading(
    likeness: Float[Array, "query_tokens tokens"], counts: Int64[Array, " candidates"]
) -> tuple[Float[Array, "query_tokens leading"], Int64[Array, " candidates"]]:
    """The first tokens of each candidate, and their numbers."""
    numbers = numbers_of(counts)
    starts = numbers.cumsum() - numbers
    place = np.arange(likeness.shape[1]) - starts.repeat(numbers)
    chosen = on_device_of(np.flatnonzero(place < LEAD), likeness)
    return likeness[:, chosen], at_most(counts, LEAD)

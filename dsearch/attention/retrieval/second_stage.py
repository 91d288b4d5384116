"""`SecondStage`: a learned term of the logit from the tokens of query and document (late interaction).

    m_i(q, d) = max_j q_i W t_j                  the best token of d for token i of the query, at least 0
    M(q, d)   = Σ_i a_i m_i^6 / Σ_i a_i          a_i: the idf of its word
    term      = γ M + Σ_f u_f x_f + v r          x: `FEATURES`, fields (monotone.py); u and v start at 0

Khattab & Zaharia 2020, "ColBERT" (arXiv:2004.12832), sum the m_i themselves. With token states that were
never trained for it that sum lost on every collection tried here: nearly every token is somewhat like some
other. The sixth power keeps what is nearly the same word in nearly the same sense.

r is the score of a reranker, a model of its own that reads query and document together, less the mean of the
candidates; a stage without one has no v. W starts as the identity and is applied to the query, so that stored
tokens stay as they are. The module has no parameter for a document or a query.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from dsearch.attention.retrieval.monotone import MonotoneField
from dsearch.errors import InvalidRequest

START_STRENGTH = 0.75
POWER = 6
FEATURES = (
    *("dense", "keyword", "sum", "lead", "length", "feedback", "dense_place", "keyword_place"),
    *("leaders", "neighbours"),
)
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

    query: Float[Tensor, "query_tokens dims"]
    weights: Float[Tensor, " query_tokens"]
    tokens: Float[Tensor, "tokens dims"]
    steps: Float[Tensor, " dims"]
    counts: Int64[Tensor, " candidates"]


class Matches(NamedTuple):
    """Matches of one query with its candidates, each in [0, 1].

    Attributes:
        sharp: M.
        sum: the weighted mean of m_i themselves.
        lead: M with the first tokens of the document alone.
    """

    sharp: Float[Tensor, " candidates"]
    sum: Float[Tensor, " candidates"]
    lead: Float[Tensor, " candidates"]


class SecondStage(nn.Module):
    """γ, W, u and v.

    Attributes:
        strength: γ.
        token_delta: W − I.
        feature_weights: u, by `FEATURES`.
        fields: further features of the metadata.
        field_weights: u, by `fields`; None without any.
        reranker: the one that is asked; None without.
        reranker_weight: v; None without one.

    Args:
        dims: length of a stored token.
        strength: γ at the start.
        fields: further features.
        reranker: a model whose scores are one more feature.

    Raises:
        InvalidRequest: dims below 1.
    """

    def __init__(
        self,
        dims: int,
        strength: float = START_STRENGTH,
        fields: tuple[MonotoneField, ...] = (),
        reranker: RerankerIdentity | None = None,
    ):
        super().__init__()
        if dims < 1:
            raise InvalidRequest(f"dims={dims}; use an integer of at least 1")
        self.token_delta = nn.Parameter(torch.zeros(dims, dims))
        self.strength = nn.Parameter(torch.tensor(float(strength)))
        self.feature_weights = nn.Parameter(torch.zeros(len(FEATURES)))
        self.fields = fields
        self.field_weights = nn.Parameter(torch.zeros(len(fields))) if fields else None
        self.reranker = reranker
        self.reranker_weight = None if reranker is None else nn.Parameter(torch.zeros(()))

    @property
    def dims(self) -> int:
        """Length of a stored token."""
        return self.token_delta.shape[0]

    @property
    def has_features(self) -> bool:
        """True if features count."""
        return bool(self.feature_weights.detach().any())

    def queries(self, states: Float[Tensor, "query_tokens dims"]) -> Float[Tensor, "query_tokens dims"]:
        """Wᵀ q: what gives with a stored token the match that q gives with W t."""
        return states + states @ self.token_delta

    def matches(self, of: Interactions) -> Matches:
        """Match of the query with each candidate; 0 for one without tokens."""
        likeness = (self.queries(of.query) * of.steps) @ of.tokens.mT
        best = best_tokens(likeness, of.counts)
        shares = (of.weights / of.weights.sum())[:, None]
        lead = best_tokens(*leading(likeness, of.counts))
        return Matches((shares * best**POWER).sum(0), (shares * best).sum(0), (shares * lead**POWER).sum(0))

    def term(
        self,
        matches: Matches,
        features: Float[Tensor, "candidates features"],
        fields: Float[Tensor, "candidates fields"] | None = None,
    ) -> Float[Tensor, " candidates"]:
        """γ M + Σ u x; without v r, see `reranked`."""
        term = self.strength * matches.sharp + features @ self.feature_weights
        if self.field_weights is None or fields is None:
            return term
        return term + fields.to(self.field_weights) @ self.field_weights

    def reranked(self, scores: Float[Tensor, " candidates"]) -> Float[Tensor, " candidates"]:
        """v r."""
        assert self.reranker_weight is not None
        return self.reranker_weight * scores.to(self.reranker_weight)


def best_tokens(
    likeness: Float[Tensor, "query_tokens tokens"], counts: Int64[Tensor, " candidates"]
) -> Float[Tensor, "query_tokens candidates"]:
    """The largest of each candidate's tokens, at least 0; 0 for one without tokens."""
    owners = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    start = likeness.new_zeros(len(likeness), len(counts))
    return start.scatter_reduce(1, owners.expand_as(likeness), likeness, "amax", include_self=True)


def leading(
    likeness: Float[Tensor, "query_tokens tokens"], counts: Int64[Tensor, " candidates"]
) -> tuple[Float[Tensor, "query_tokens leading"], Int64[Tensor, " candidates"]]:
    """The first tokens of each candidate, and their numbers."""
    ends = counts.cumsum(0)
    place = torch.arange(likeness.shape[1], device=counts.device)
    place = place - torch.repeat_interleave(ends - counts, counts)
    return likeness[:, place < LEAD], counts.clamp(max=LEAD)

"""Train W, the matrix between tokens of query and document, on judged queries.

    minimise  − Σ_d p(d) log softmax_d β (s₁ + γ M_W + Σ u x_W)  +  pull · ‖W − I‖²

over the candidates of the first stage, from W = I, with γ and u fixed and β free. W changes M and the
features that are made of matches; stored tokens stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.attention.adam import Adam
from dsearch.attention.late_interaction import FEATURES, Interactions, Matches
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.engine.ranking.second_stage import Reranker, neutral
from dsearch.engine.snapshot.snapshot import NONE, Snapshot
from dsearch.engine.snapshot.tokens_of_query import QueryTokens
from dsearch.training.finetune.lists import CandidateLists

PULL = 0.1
EPOCHS = 8
_RATE = 2e-3
_BATCH = 16
_MATCHES = (0, 1 + FEATURES.index("sum"), 1 + FEATURES.index("lead"))  # columns that W changes


class TokenLists:
    """The tokens of the candidates of lists, read again whenever they are needed.

    Args:
        snapshot: the documents.
        tokens: of each query of the examples.
        lists: candidates.
    """

    def __init__(self, snapshot: Snapshot, tokens: Sequence[QueryTokens], lists: CandidateLists):
        assert snapshot.tokens is not None
        self._reranker = Reranker(snapshot, SecondStage(snapshot.tokens.codec.dims))
        self._tokens, self._lists = tokens, lists

    def of(self, lists: CandidateLists) -> TokenLists:
        """The tokens of other lists of these queries."""
        return TokenLists(self._reranker.snapshot, self._tokens, lists)

    @property
    def dims(self) -> int:
        """Numbers of a token."""
        return self._reranker.stage.dims

    def matches(self, row: int, stage: SecondStage) -> Matches:
        """Matches of one query with its candidates by a stage."""
        positions = self._lists.positions[row]
        present = positions != NONE
        of, present_tokens = self._of(row, positions[present])
        return neutral(stage.matches(of), present_tokens)

    def _of(self, row: int, positions: np.ndarray) -> tuple[Interactions, np.ndarray]:
        query = self._tokens[int(self._lists.queries[row])]
        return self._reranker.interactions(query, positions, torch.zeros(0))


def fit_matrix(
    lists: CandidateLists,
    tokens: TokenLists,
    weights: Float[Tensor, " terms"],
    *,
    pull: float = PULL,
    epochs: int = EPOCHS,
    seed: int = 0,
) -> Float[Tensor, "dims dims"]:
    """W − I by these queries.

    Args:
        lists: candidates.
        tokens: of these candidates.
        weights: γ and u.
        pull: strength of the pull to I.
        epochs: passes over the queries.
        seed: random seed of their order.
    """
    stage = SecondStage(tokens.dims)
    steepness = torch.zeros((), requires_grad=True)
    optimiser = Adam([{"params": [stage.token_delta, steepness], "lr": _RATE}])
    judged = np.flatnonzero(lists.grades.sum(1) > 0)
    chance = np.random.default_rng([seed, 5])
    with torch.enable_grad():
        for _ in range(epochs):
            order = chance.permutation(judged)
            for start in range(0, len(order), _BATCH):
                batch = order[start : start + _BATCH]
                optimiser.zero_grad()
                lost = torch.stack(
                    [_loss(lists, tokens, stage, weights, steepness, row) for row in batch.tolist()]
                )
                value = lost.mean() + pull * stage.token_delta.square().sum()
                value.backward()  # pyright: ignore[reportUnknownMemberType]
                optimiser.step()
    return stage.token_delta.detach()


@torch.no_grad()
def with_matrix(
    lists: CandidateLists, tokens: TokenLists, delta: Float[Tensor, "dims dims"]
) -> CandidateLists:
    """These lists with the matches of W = I + delta."""
    stage = SecondStage(tokens.dims)
    stage.token_delta.copy_(delta)
    features = lists.features.clone()
    for row in range(len(lists)):
        features[row] = _features(lists, row, tokens.matches(row, stage))
    return replace(lists, features=features)


def _features(lists: CandidateLists, row: int, matches: Matches) -> Float[Tensor, "candidates terms"]:
    changed = torch.stack([matches.sharp, matches.sum, matches.lead], dim=1)
    before = lists.features[row]
    columns = list(before.unbind(1))
    for at, column in zip(_MATCHES, changed.unbind(1), strict=True):
        columns[at] = torch.nn.functional.pad(column, (0, len(before) - len(column)))
    return torch.stack(columns, dim=1)


def _loss(
    lists: CandidateLists,
    tokens: TokenLists,
    stage: SecondStage,
    weights: Float[Tensor, " terms"],
    steepness: Float[Tensor, ""],
    row: int,
) -> Float[Tensor, ""]:
    features = _features(lists, row, tokens.matches(row, stage))
    missing = lists.scores[row] == -torch.inf
    total = lists.scores[row].masked_fill(missing, 0.0) + features @ weights
    logits = (total / lists.temperature[row] * steepness.exp()).masked_fill(missing, -torch.inf)
    grades = torch.as_tensor(lists.grades[row]).float()
    target = grades / grades.sum()
    return -torch.where(target > 0, target * logits.log_softmax(0), 0.0).sum()

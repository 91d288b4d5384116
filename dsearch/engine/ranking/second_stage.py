"""The second stage of a search: a term of the logit for the best candidates of the first (late interaction).

    candidates by t · l₁ → the best R → tokens, features → term → one softmax over all candidates

A candidate outside the best R gets the smallest term that one of them has, less what keeps its logit below
all of theirs: it never ranks above one that was looked at. With several heads the term is the same for all.
A document whose tokens are not known gets the mean of the others' matches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64

from dsearch.attention.arrays import (
    Array,
    as_like,
    at_least,
    best_first,
    fill,
    gradients_enabled,
    is_array,
    log,
    numbers_of,
    on_device_of,
    product,
    put,
    softmax,
    stack,
    unit,
    zeros,
)
from dsearch.attention.late_interaction import (
    FEATURES,
    FixedStage,
    Interactions,
    Matches,
    StageFormulas,
)
from dsearch.attention.retrieval.fixed_head import HeadFormulas
from dsearch.attention.retrieval.kernel import StageTerms, raw_scores
from dsearch.engine.ranking.scores import WITHOUT_TOKENS
from dsearch.engine.snapshot import NONE, QueryTokens, Snapshot, SnapshotTokens
from dsearch.errors import InvalidRequest, NotInCluster
from dsearch.search_options import RERANK_CANDIDATES

_ROUNDING = 1e-6  # of a score that is computed in two ways
_WITHOUT_TEXTS = (
    "this model asks a reranker, which reads the documents' texts, and they are not at hand here; search "
    "with stages=1, or promote a version without one"
)
_SHARPNESS = 0.05  # temperature of the leaders' shares: that of an untrained head
_NEARNESS = 0.1  # temperature of neighbours' cosines
_FEEDBACK = 10  # hits of the first stage whose mean is the feedback vector


class FirstStage(NamedTuple):
    """Scores of the first stage for the candidates of some queries.

    Attributes:
        positions: of the candidates; −1 = none.
        raw: t · l of each head.
        scores: the score that orders them.
        dense: of each head.
        keyword: b(q, d), without a weight; None without words.
    """

    positions: Int64[np.ndarray, "batch candidates"]
    raw: Float[Array, "batch heads candidates"]
    scores: Float[Array, "batch candidates"]
    dense: Float[Array, "batch heads candidates"]
    keyword: Float[Array, "batch candidates"] | None

    def of(self, sharing: Bool[np.ndarray, "batch candidates"]) -> FirstStage:
        """That of the candidates where `sharing` is True; the others count as none."""
        scores = fill(self.scores, on_device_of(~sharing, self.scores), -math.inf)
        return self._replace(positions=np.where(sharing, self.positions, NONE), scores=scores)


class CandidateEvidence(NamedTuple):
    """The part of the second stage that needs the documents of reranked candidates.

    Attributes:
        matches: with the query; neutral where tokens are not known.
        counts: tokens of each.
        embeddings: of each document; None where no feature counts.
        reranked: scores of a reranker, less their mean; None without one.
    """

    matches: Matches
    counts: Int64[Array, " reranked"]
    embeddings: Float[Array, "reranked encoder_dim"] | None
    reranked: Float[np.ndarray, " reranked"] | None = None


@dataclass(frozen=True, slots=True)
class Reranker:
    """The second stage over one snapshot.

    Attributes:
        snapshot: the documents.
        stage: the learned part.
        candidates: R.
    """

    snapshot: Snapshot
    stage: StageFormulas
    candidates: int = RERANK_CANDIDATES

    def terms(self, queries: Sequence[QueryTokens], first: FirstStage) -> StageTerms:
        """The term of each candidate."""
        learns = not is_array(first.raw) and gradients_enabled()
        with_features = self.stage.has_features or learns

        def evidence(row: int, at: Int64[np.ndarray, " reranked"]) -> CandidateEvidence:
            positions = first.positions[row, at]
            of, present = self.interactions(queries[row], positions, first.raw)
            matches = neutral(self.stage.matches(of), present)
            embeddings = self.embeddings(positions, first.raw) if with_features else None
            reranked = reranker_scores(self.snapshot, self.stage, queries[row], positions)
            return CandidateEvidence(matches, of.counts, embeddings, reranked)

        return terms(self.stage, first, self.best(first), evidence)

    def best(self, first: FirstStage) -> list[Int64[np.ndarray, " _"]]:
        """The columns of the best candidates of each query, ascending."""
        return best_columns(first, self.candidates)

    def embeddings(
        self, positions: Int64[np.ndarray, " reranked"], like: Array
    ) -> Float[Array, "reranked encoder_dim"]:
        """Embeddings of candidates, with the type and device of `like`."""
        return as_like(self.snapshot.embeddings(positions), like)

    def interactions(
        self, query: QueryTokens, positions: Int64[np.ndarray, " reranked"], like: Array
    ) -> tuple[Interactions, Bool[np.ndarray, " reranked"]]:
        """Tokens of a query and of candidates, with the type and device of `like`; and which are known."""
        tokens = require_tokens(self.snapshot)
        gathered = tokens.gather(positions)
        codec = tokens.codec
        return (
            Interactions(
                as_like(query.states, like),
                as_like(query.weights, like),
                as_like(codec.numbers(gathered.codes), like),
                as_like(codec.steps, like),
                on_device_of(gathered.counts, like),
            ),
            gathered.present,
        )


def terms(
    stage: StageFormulas,
    first: FirstStage,
    best: Sequence[Int64[np.ndarray, " _"]],
    evidence: Callable[[int, Int64[np.ndarray, " reranked"]], CandidateEvidence],
) -> StageTerms:
    """The term of each candidate.

    Args:
        stage: the learned part.
        first: scores of the first stage.
        best: columns of the reranked candidates of each query.
        evidence: returns what the documents at these columns of a query say.
    """
    inside = np.zeros(first.positions.shape, bool)
    rows: list[Array] = []
    by_reranker: list[Array] = []
    for row, at in enumerate(best):
        inside[row, at] = True
        raw = first.raw[row]
        nothing = zeros((raw.shape[1],), raw)
        by_reranker.append(nothing)
        if not len(at):
            rows.append(nothing)
            continue
        of = evidence(row, at)
        if of.embeddings is None:
            features = zeros((len(at), len(FEATURES)), raw)
        else:
            features = features_of(first, row, at, of)
        term = as_like(stage.term(of.matches, features), raw)
        if of.reranked is not None:
            part = as_like(stage.reranked(of.reranked), raw)
            by_reranker[row] = put(nothing, on_device_of(at, raw), part)
            term = term + part
        rows.append(spread(term, at, raw, first.positions[row] != NONE))
    if not rows:
        none = zeros(first.positions.shape, first.scores)
        return StageTerms(none, inside, None if stage.reranker is None else none)
    return StageTerms(stack(rows, 0), inside, None if stage.reranker is None else stack(by_reranker, 0))


def reranker_scores(
    snapshot: Snapshot, stage: StageFormulas, query: QueryTokens, positions: Int64[np.ndarray, " reranked"]
) -> Float[np.ndarray, " reranked"] | None:
    """r of each document; None without a reranker.

    Raises:
        RerankerUnavailable: it is not on this machine, or is another one now.
    """
    if stage.reranker is None:
        return None
    if snapshot.reranked is None:
        raise NotInCluster(_WITHOUT_TEXTS)
    scores = snapshot.reranked(stage.reranker, query.text, snapshot.rows(positions))
    return scores - scores.mean()


def best_columns(first: FirstStage, most: int) -> list[Int64[np.ndarray, " _"]]:
    """The columns of the best `most` candidates of each query, ascending."""
    open_to = first.positions != NONE
    order = numbers_of(best_first(first.scores))
    return [np.sort(line[open_[line]][:most]) for line, open_ in zip(order, open_to, strict=True)]


def features_of(
    first: FirstStage, row: int, at: Int64[np.ndarray, " reranked"], of: CandidateEvidence
) -> Float[Array, "reranked features"]:
    """x of each reranked candidate, by `FEATURES`, on scales of about 1.

    feedback, leaders: e_d with the mean of the best ten; with that of all, each by its share of the softmax.
    neighbours: Σ_j softmax_j(e_d · e_j / .1) z_j, z the standardised scores: what is like good documents is
    good (Diaz 2005, "Regularizing ad hoc retrieval scores").
    """
    assert of.embeddings is not None
    columns = on_device_of(at, first.scores)
    dense = first.dense[row].mean(0)[columns]
    keyword = zeros(dense.shape, dense)
    if first.keyword is not None:
        keyword = as_like(first.keyword[row][columns], dense)
    embeddings = as_like(of.embeddings, dense)
    scores = as_like(_fixed(first.scores[row][columns]), dense)
    order = best_first(scores[None])[0]
    shares = softmax(scores / _SHARPNESS, 0)
    best = embeddings[order[:_FEEDBACK]].mean(0)
    every = {
        "dense": dense,
        "keyword": keyword,
        "sum": of.matches.sum,
        "lead": of.matches.lead,
        "length": log(at_least(as_like(of.counts, dense), 1)) / 4,
        "feedback": (embeddings * unit(best)).sum(-1),
        "dense_place": _place(dense),
        "keyword_place": _place(keyword),
        "leaders": (embeddings * unit(shares @ embeddings)).sum(-1),
        "neighbours": _scores_of_neighbours(scores, embeddings),
    }
    return stack([every[name] for name in FEATURES], 1)


def neutral(matches: Matches, present: Bool[np.ndarray, " reranked"]) -> Matches:
    """Matches in which documents without known tokens have the mean of the others."""
    if present.all() or not present.any():
        return matches
    with_tokens = on_device_of(np.flatnonzero(present), matches.sharp)
    everything = (zeros(of.shape, of) + of[with_tokens].mean() for of in matches)
    return Matches(
        *(put(mean, with_tokens, of[with_tokens]) for mean, of in zip(everything, matches, strict=True))
    )


def spread(
    inside: Float[Array, " reranked"],
    at: Int64[np.ndarray, " reranked"],
    raw: Float[Array, "heads candidates"],
    candidates_at: Bool[np.ndarray, " candidates"],
) -> Float[Array, " candidates"]:
    """The terms of all candidates, given those of the reranked ones; `candidates_at` is False at padding.

    A constant for all outside, so that they keep their order.
    """
    columns = on_device_of(at, raw)
    others = candidates_at.copy()
    others[at] = False
    floor = inside.min()
    if others.any():
        highest = (raw[:, on_device_of(np.flatnonzero(others), raw)] + floor).max()
        behind = highest - raw_scores(raw[:, columns], second=inside).min()
        floor = floor - fill(at_least(behind, 0.0), (behind == math.inf) | (behind != behind), 0.0)
    return put(zeros((raw.shape[1],), raw) + floor, columns, inside)


def stage_of(head: HeadFormulas) -> StageFormulas:
    """The head's second stage; the untrained one if it learned none."""
    if head.second_stage is not None:
        return head.second_stage
    if is_array(head.log_temperature):
        return FixedStage()
    from dsearch.attention.retrieval.second_stage import SecondStage

    return SecondStage().to(head.log_temperature.device)


def require_tokens(snapshot: Snapshot) -> SnapshotTokens:
    """Return the tokens of a state's documents.

    Raises:
        InvalidRequest: there are none.
    """
    if snapshot.tokens is None:
        raise InvalidRequest(WITHOUT_TOKENS)
    return snapshot.tokens


def _scores_of_neighbours(
    scores: Float[Array, " reranked"], embeddings: Float[Array, "reranked encoder_dim"]
) -> Float[Array, " reranked"]:
    """Mean standardised score of the other candidates, the nearest weighing most; 0 for a single one."""
    if len(scores) < 2:
        return zeros(scores.shape, scores)
    centred = scores - scores.mean()
    spread_of = ((centred * centred).sum() / (len(scores) - 1)) ** 0.5
    itself = on_device_of(np.eye(len(scores), dtype=bool), scores)
    likeness = fill(product(embeddings, embeddings), itself, -math.inf)
    return softmax(likeness / _NEARNESS, 1) @ (centred / (spread_of + _ROUNDING))


def _place(scores: Float[Array, " reranked"]) -> Float[Array, " reranked"]:
    """1 / (place + 1) of each, the best at place 1; equals share the better place."""
    fixed = _fixed(scores)
    return 1 / (2 + as_like((fixed[None] > fixed[:, None] + _ROUNDING).sum(1), scores))


def _fixed(numbers: Array) -> Array:
    """The same without a gradient."""
    return numbers if is_array(numbers) else numbers.detach()

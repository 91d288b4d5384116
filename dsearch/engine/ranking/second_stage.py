"""The second stage of a search: a term of the logit for the best candidates of the first (late interaction).

    candidates by t · l₁ → the best R → tokens, features → term → one softmax over all candidates

A candidate outside the best R gets the smallest term that one of them has, less what keeps its logit below
all of theirs: it never ranks above one that was looked at. With several heads the term is the same for all.
A document whose tokens are not known gets the mean of the others' matches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from dsearch.attention.retrieval.fixed_head import HeadFormulas
from dsearch.attention.retrieval.monotone import MonotoneField
from dsearch.attention.retrieval.second_stage import (
    FEATURES,
    START_STRENGTH,
    Interactions,
    Matches,
    SecondStage,
)
from dsearch.engine.ranking.scores import WITHOUT_TOKENS
from dsearch.engine.snapshot.snapshot import NONE, Snapshot
from dsearch.engine.snapshot.tokens import SnapshotTokens
from dsearch.engine.snapshot.tokens_of_query import QueryTokens
from dsearch.errors import InvalidRequest, NotInCluster
from dsearch.evaluation.near import NearRows, StageScores, near_evidence
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
    raw: Float[Tensor, "batch heads candidates"]
    scores: Float[Tensor, "batch candidates"]
    dense: Float[Tensor, "batch heads candidates"]
    keyword: Float[Tensor, "batch candidates"] | None

    def of(self, sharing: Bool[np.ndarray, "batch candidates"]) -> FirstStage:
        """That of the candidates where `sharing` is True; the others count as none."""
        beyond = torch.as_tensor(~sharing).to(self.scores.device)
        scores = self.scores.masked_fill(beyond, -torch.inf)
        return self._replace(positions=np.where(sharing, self.positions, NONE), scores=scores)


class CandidateEvidence(NamedTuple):
    """The part of the second stage that needs the documents of reranked candidates.

    Attributes:
        matches: with the query; neutral where tokens are not known.
        counts: tokens of each.
        embeddings: of each document; None where no feature counts.
        fields: monotone features of the metadata; None without any.
        reranked: scores of a reranker, less their mean; None without one.
    """

    matches: Matches
    counts: Int64[Tensor, " reranked"]
    embeddings: Float[Tensor, "reranked encoder_dim"] | None
    fields: Float[Tensor, "reranked fields"] | None = None
    reranked: Float[Tensor, " reranked"] | None = None


class StageTerms(NamedTuple):
    """Terms of the candidates of some queries.

    Attributes:
        values: to be added to t · l of every head.
        inside: True for those that the second stage looked at.
        evidence: `NEAR_EVIDENCE` of each query; None with gradients, and over shards.
        reranked: the reranker's part of the values; None without one.
    """

    values: Float[Tensor, "batch candidates"]
    inside: Bool[np.ndarray, "batch candidates"]
    evidence: NearRows | None = None
    reranked: Float[Tensor, "batch candidates"] | None = None


@dataclass(frozen=True, slots=True)
class Reranker:
    """The second stage over one snapshot.

    Attributes:
        snapshot: the documents.
        stage: the learned part.
        candidates: R.
    """

    snapshot: Snapshot
    stage: SecondStage
    candidates: int = RERANK_CANDIDATES

    def terms(self, queries: Sequence[QueryTokens], first: FirstStage) -> StageTerms:
        """The term of each candidate."""
        with_features = self.stage.has_features or torch.is_grad_enabled()
        matched: list[Matches] = []

        def evidence(row: int, at: Int64[np.ndarray, " reranked"]) -> CandidateEvidence:
            positions = first.positions[row, at]
            of, present = self.interactions(queries[row], positions, first.raw)
            matches = neutral(self.stage.matches(of), present)
            matched.append(matches)
            embeddings = self.embeddings(positions, first.raw) if with_features else None
            fields = monotone_features(self.snapshot, self.stage.fields, positions)
            reranked = reranker_scores(self.snapshot, self.stage, queries[row], positions)
            return CandidateEvidence(matches, of.counts, embeddings, fields, reranked)

        best = self.best(first)
        result = terms(self.stage, first, best, evidence)
        if torch.is_grad_enabled():
            return result
        scores = stage_scores(first, best, matched, [query.weights for query in queries])
        return result._replace(evidence=near_evidence(scores, START_STRENGTH))

    def best(self, first: FirstStage) -> list[Int64[np.ndarray, " _"]]:
        """The columns of the best candidates of each query, ascending."""
        return best_columns(first, self.candidates)

    def embeddings(
        self, positions: Int64[np.ndarray, " reranked"], like: Tensor
    ) -> Float[Tensor, "reranked encoder_dim"]:
        """Embeddings of candidates, with the type and device of `like`."""
        return torch.as_tensor(self.snapshot.embeddings(positions)).to(like)

    def interactions(
        self, query: QueryTokens, positions: Int64[np.ndarray, " reranked"], like: Tensor
    ) -> tuple[Interactions, Bool[np.ndarray, " reranked"]]:
        """Tokens of a query and of candidates, with the type and device of `like`; and which are known."""
        tokens = _tokens_of(self.snapshot)
        gathered = tokens.gather(positions)
        codec = tokens.codec
        return (
            Interactions(
                torch.as_tensor(query.states).to(like),
                torch.as_tensor(query.weights).to(like),
                torch.as_tensor(codec.numbers(gathered.codes)).to(like),
                torch.as_tensor(codec.steps).to(like),
                torch.as_tensor(gathered.counts).to(like.device),
            ),
            gathered.present,
        )


def terms(
    stage: SecondStage,
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
    rows: list[Tensor] = []
    parts: dict[int, Tensor] = {}  # of the reranker
    for row, at in enumerate(best):
        inside[row, at] = True
        raw = first.raw[row]
        if not len(at):
            rows.append(raw.new_zeros(raw.shape[1]))
            continue
        of = evidence(row, at)
        if of.embeddings is None:
            features = raw.new_zeros(len(at), len(FEATURES))
        else:
            features = features_of(first, row, at, of)
        term = stage.term(of.matches, features, of.fields).to(raw)
        if of.reranked is not None:
            part = stage.reranked(of.reranked).to(raw)
            parts[row] = raw.new_zeros(raw.shape[1]).scatter(0, torch.as_tensor(at).to(raw.device), part)
            term = term + part
        rows.append(spread(term, at, raw, first.positions[row] != NONE))
    values = torch.stack(rows) if rows else torch.zeros_like(first.scores)
    if stage.reranker is None:
        return StageTerms(values, inside)
    nothing = values.new_zeros(values.shape[1])
    by_reranker = [parts.get(row, nothing) for row in range(len(rows))]
    return StageTerms(values, inside, None, torch.stack(by_reranker) if rows else torch.zeros_like(values))


def monotone_features(
    snapshot: Snapshot, fields: Sequence[MonotoneField], positions: Int64[np.ndarray, " reranked"]
) -> Float[Tensor, "reranked fields"] | None:
    """x of each document and field; None without fields."""
    if not fields or snapshot.fields is None:
        return None
    rows = snapshot.rows(positions)
    return torch.as_tensor(
        np.stack([field.of(snapshot.fields(rows, field.name)) for field in fields], axis=1)
    )


def reranker_scores(
    snapshot: Snapshot, stage: SecondStage, query: QueryTokens, positions: Int64[np.ndarray, " reranked"]
) -> Float[Tensor, " reranked"] | None:
    """r of each document; None without a reranker.

    Raises:
        RerankerUnavailable: it is not on this machine, or is another one now.
    """
    if stage.reranker is None:
        return None
    if snapshot.reranked is None:
        raise NotInCluster(_WITHOUT_TEXTS)
    scores = torch.as_tensor(snapshot.reranked(stage.reranker, query.text, snapshot.rows(positions)))
    return scores - scores.mean()


def stage_scores(
    first: FirstStage,
    best: Sequence[Int64[np.ndarray, " _"]],
    matched: Sequence[Matches],
    weights: Sequence[Float32[np.ndarray, " _"]],
) -> StageScores:
    """Scores of both stages for the reranked candidates; `matched`: of each query that has any."""
    shape = (len(best), max(map(len, best), default=0) or 1)
    values = np.zeros((6, *shape))
    present = np.zeros(shape, bool)
    dense = first.dense.mean(1)
    following = iter(matched)
    for row, at in enumerate(best):
        if not len(at):
            continue
        columns, matches = torch.as_tensor(at).to(dense.device), next(following)
        parts = [first.scores[row, columns], dense[row, columns]]
        parts += [
            torch.zeros_like(dense[row, columns]) if first.keyword is None else first.keyword[row, at],
            *matches,
        ]
        for part, of in enumerate(parts):
            values[part, row, : len(at)] = of.cpu().numpy()
        present[row, : len(at)] = True
    scores, of_dense, of_keyword, match, coverage, start = values
    return StageScores(scores, of_dense, of_keyword, match, coverage, start, present, list(weights))


def best_columns(first: FirstStage, most: int) -> list[Int64[np.ndarray, " _"]]:
    """The columns of the best `most` candidates of each query, ascending."""
    open_to = first.positions != NONE
    order = first.scores.detach().sort(dim=1, descending=True, stable=True).indices.cpu().numpy()
    return [np.sort(line[open_[line]][:most]) for line, open_ in zip(order, open_to, strict=True)]


def features_of(
    first: FirstStage, row: int, at: Int64[np.ndarray, " reranked"], of: CandidateEvidence
) -> Float[Tensor, "reranked features"]:
    """x of each reranked candidate, by `FEATURES`, on scales of about 1.

    feedback, leaders: e_d with the mean of the best ten; with that of all, each by its share of the softmax.
    neighbours: Σ_j softmax_j(e_d · e_j / .1) z_j, z the standardised scores: what is like good documents is
    good (Diaz 2005, "Regularizing ad hoc retrieval scores").
    """
    assert of.embeddings is not None
    columns = torch.as_tensor(at).to(first.scores.device)
    dense = first.dense[row].mean(0)[columns]
    keyword = torch.zeros_like(dense)
    if first.keyword is not None:
        keyword = first.keyword[row, columns].to(dense)
    embeddings = of.embeddings.to(dense)
    scores = first.scores[row, columns].detach().to(dense)
    order = scores.sort(descending=True, stable=True).indices
    shares = (scores / _SHARPNESS).softmax(0)
    best = embeddings[order[:_FEEDBACK]].mean(0)
    every = {
        "dense": dense,
        "keyword": keyword,
        "sum": of.matches.sum,
        "lead": of.matches.lead,
        "length": of.counts.to(dense).clamp_min(1).log() / 4,
        "feedback": embeddings @ torch.nn.functional.normalize(best, dim=0),
        "dense_place": _place(dense),
        "keyword_place": _place(keyword),
        "leaders": embeddings @ torch.nn.functional.normalize(shares @ embeddings, dim=0),
        "neighbours": _scores_of_neighbours(scores, embeddings),
    }
    return torch.stack([every[name] for name in FEATURES], dim=1)


def neutral(matches: Matches, present: Bool[np.ndarray, " reranked"]) -> Matches:
    """Matches in which documents without known tokens have the mean of the others."""
    if present.all() or not present.any():
        return matches
    with_tokens = torch.as_tensor(present).to(matches.sharp.device)
    return Matches(*(torch.where(with_tokens, of, of[with_tokens].mean()) for of in matches))


def spread(
    inside: Float[Tensor, " reranked"],
    at: Int64[np.ndarray, " reranked"],
    raw: Float[Tensor, "heads candidates"],
    candidates_at: Bool[np.ndarray, " candidates"],
) -> Float[Tensor, " candidates"]:
    """The terms of all candidates, given those of the reranked ones; `candidates_at` is False at padding.

    A constant for all outside, so that they keep their order.
    """
    columns = torch.as_tensor(at).to(raw.device)
    outside = torch.as_tensor(candidates_at).to(raw.device)
    outside = outside.scatter(0, columns, torch.zeros_like(columns, dtype=torch.bool))
    floor = inside.min()
    if bool(outside.any()):
        highest = (raw[:, outside] + floor).amax()
        lowest = (raw[:, columns] + inside).amin()
        floor = floor - (highest - lowest).clamp_min(0.0).nan_to_num(nan=0.0, posinf=0.0)
    term = floor.expand(raw.shape[1])
    return term.scatter(0, columns, inside)


def stage_of(snapshot: Snapshot, head: HeadFormulas) -> SecondStage:
    """The head's second stage; the untrained one if it learned none."""
    if head.second_stage is not None:
        return head.second_stage
    return SecondStage(_tokens_of(snapshot).codec.dims).to(head.log_temperature.device)


def require_tokens(snapshot: Snapshot) -> SnapshotTokens:
    """Return the tokens of a state's documents.

    Raises:
        InvalidRequest: there are none.
    """
    if snapshot.tokens is None:
        raise InvalidRequest(WITHOUT_TOKENS)
    return snapshot.tokens


def _tokens_of(snapshot: Snapshot) -> SnapshotTokens:
    assert snapshot.tokens is not None
    return snapshot.tokens


def _scores_of_neighbours(
    scores: Float[Tensor, " reranked"], embeddings: Float[Tensor, "reranked encoder_dim"]
) -> Float[Tensor, " reranked"]:
    """Mean standardised score of the other candidates, the nearest weighing most; 0 for a single one."""
    if len(scores) < 2:
        return torch.zeros_like(scores)
    standard = (scores - scores.mean()) / (scores.std() + _ROUNDING)
    itself = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    likeness = (embeddings @ embeddings.mT).masked_fill(itself, -torch.inf)
    return (likeness / _NEARNESS).softmax(1) @ standard


def _place(scores: Float[Tensor, " reranked"]) -> Float[Tensor, " reranked"]:
    """1 / (place + 1) of each, the best at place 1; equals share the better place."""
    fixed = scores.detach()
    return 1 / (2 + (fixed[None] > fixed[:, None] + _ROUNDING).sum(1).to(scores))

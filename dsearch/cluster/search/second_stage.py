"""The second stage over shards: each scores its own candidates, the order is made here.

    best candidates of all shards → each shard: matches, embeddings (`rerank`) → terms as on one machine

Features that compare candidates of several shards, and the order, are the coordinator's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int64

from dsearch.attention.arrays import inference, numbers_of
from dsearch.attention.late_interaction import FixedStage, Interactions, Matches
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.cluster.messages import MeaningRequest, QueryText, RescoreRequest, RescoreResult
from dsearch.encoder import TextTokens
from dsearch.engine.ranking.scores import chosen_stages
from dsearch.engine.ranking.second_stage import (
    CandidateEvidence,
    FirstStage,
    Reranker,
    StageTerms,
    best_columns,
    neutral,
    require_tokens,
    terms,
)
from dsearch.engine.search.highlights import meaning_highlighter
from dsearch.engine.snapshot import NONE, QueryTokens, Snapshot, query_tokens
from dsearch.errors import Command, NotInCluster
from dsearch.types import Document, Highlight, Mode


def rerank(state: Snapshot, offset: int, request: RescoreRequest) -> RescoreResult:
    """Match each query with its candidates.

    Raises:
        InvalidRequest: the shard has no tokens.
    """
    with inference():
        require_tokens(state)
        reranker = Reranker(state, FixedStage())
        queries = _projected(state, request.queries)
        here = np.where(request.positions == NONE, NONE, request.positions - offset)
        matches = np.zeros((*here.shape, 3), np.float32)
        counts, present = np.zeros(here.shape, np.int64), np.zeros(here.shape, bool)
        for row, query in enumerate(queries):
            of, is_known = reranker.interactions(query, here[row], reranker.stage.strength)
            # Rounded from float64, so documents of equal tokens tie in any shard; see `_dense` of shard.py.
            states, weights, tokens, steps = (numbers_of(part).astype(np.float64) for part in of[:4])
            exact = Interactions(states, weights, tokens, steps, of.counts)
            matches[row] = np.stack(reranker.stage.matches(exact), axis=1)
            counts[row], present[row] = numbers_of(of.counts), is_known
        embeddings = state.embeddings(here) if request.embeddings else None
        return RescoreResult(matches, counts, present, embeddings)


def shown_meaning(
    state: Snapshot, request: MeaningRequest | None
) -> Callable[[int, int, Document], list[Highlight]] | None:
    """Return a function that highlights by meaning the document at a position, given the hit's number."""
    if request is None:
        return None
    require_tokens(state)
    pieces = meaning_highlighter(state, _projected(state, request.queries))

    def of_hit(number: int, position: int, document: Document) -> list[Highlight]:
        (row,) = state.rows(np.array([position])).tolist()
        return pieces(request.numbers[number], row, document)

    return of_hit


def _projected(state: Snapshot, queries: Sequence[QueryText]) -> list[QueryTokens]:
    return [query_tokens(TextTokens(query.states, query.spans), query.text, state) for query in queries]


AskShards = Callable[[str, Mapping[int, Any]], dict[int, Any]]
"""Calls a method of several shards, each with its request."""


@dataclass(frozen=True, slots=True)
class RerankQuery:
    """The second stage of a request.

    Attributes:
        stages: as of `SearchOptions`.
        candidates: number of candidates that are reranked.
        queries: of the batch; None if no second stage can follow.
    """

    stages: int | None
    candidates: int
    queries: list[QueryText] | None


def may_rerank(stages: int | None, head: Head, mode: Mode) -> bool:
    """True if a second stage may follow: queries are to be encoded with their tokens."""
    return stages == 2 or (stages is None and head.second_stage is not None and mode == "hybrid")


def stage_over(query: RerankQuery, has_tokens: bool, head: Head, mode: Mode) -> SecondStage | None:
    """Return the second stage that follows; None if there is only the first.

    Raises:
        InvalidRequest: 2 stages where the shards have no tokens, or with options that it does not go with.
        NotInCluster: the model learned a second stage, and the release has no tokens for it; or it asks a
            reranker.
    """
    learned = head.second_stage
    if query.stages is None and learned is not None and mode == "hybrid" and not has_tokens:
        raise NotInCluster(
            "this model has a second stage, and the release no tokens for it; publish the collection again, "
            "or ask with stages=1",
            hint=Command("cluster start", ("-c", "COLLECTION")),
        )
    if query.queries is None:
        return None
    if chosen_stages(query.stages, head, has_tokens=has_tokens, mode=mode, plain=True) == 1:
        return None
    if learned is not None and learned.reranker is not None:
        raise NotInCluster(
            f"this model asks the reranker {learned.reranker.name!r}, which shards do not run; promote a "
            "version without one, or ask with stages=1"
        )
    return learned or SecondStage()


class ShardedReranker:
    """Terms of candidates that lie on shards.

    Args:
        ask: calls shards.
        stage: the learned part.
        query: queries and options.
    """

    def __init__(self, ask: AskShards, stage: SecondStage, query: RerankQuery):
        self._ask, self._stage, self._query = ask, stage, query

    def terms(self, first: FirstStage, owners: Int64[np.ndarray, "batch candidates"]) -> StageTerms:
        """The term of each candidate; `owners` has the shard of each.

        Raises:
            ShardsLost: a shard does not answer.
        """
        best = best_columns(first, self._query.candidates)
        columns = {
            shard: [at[owners[row, at] == shard] for row, at in enumerate(best)]
            for shard in np.unique(np.concatenate([owners[row, at] for row, at in enumerate(best)])).tolist()
        }
        answers = self._answers(first, columns)
        empty = np.zeros(0, np.int64)

        def evidence(row: int, at: Int64[np.ndarray, " reranked"]) -> CandidateEvidence:
            place = np.full(first.positions.shape[1], -1, np.int64)
            place[at] = np.arange(len(at))
            matches, counts = np.zeros((len(at), 3), np.float32), np.zeros(len(at), np.int64)
            present = np.zeros(len(at), bool)
            embeddings = None
            for shard, answer in answers.items():
                mine = place[columns[shard][row]] if len(columns[shard][row]) else empty
                width = len(mine)
                matches[mine], counts[mine] = answer.matches[row, :width], answer.counts[row, :width]
                present[mine] = answer.present[row, :width]
                if answer.embeddings is not None:
                    if embeddings is None:
                        embeddings = np.zeros((len(at), answer.embeddings.shape[2]), np.float32)
                    embeddings[mine] = answer.embeddings[row, :width]
            columnwise = (torch.as_tensor(column) for column in matches.T.copy())
            return CandidateEvidence(
                neutral(Matches(*columnwise), present),
                torch.as_tensor(counts),
                None if embeddings is None else torch.as_tensor(embeddings),
            )

        return terms(self._stage, first, best, evidence)

    def _answers(
        self, first: FirstStage, columns: Mapping[int, Sequence[Int64[np.ndarray, " _"]]]
    ) -> dict[int, RescoreResult]:
        assert self._query.queries is not None
        requests: dict[int, RescoreRequest] = {}
        for shard, of_rows in columns.items():
            positions = np.full((len(of_rows), max(map(len, of_rows))), -1, np.int64)
            for row, at in enumerate(of_rows):
                positions[row, : len(at)] = first.positions[row, at]
            requests[shard] = RescoreRequest(self._query.queries, positions, self._stage.has_features)
        return cast("dict[int, RescoreResult]", self._ask("rerank", requests) if requests else {})

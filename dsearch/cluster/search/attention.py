"""`ShardedAttention`: attention over the documents of all shards, with the results of a single machine.

queries → fold → every shard proposes → best of all shards → logits, softmax, ranking
for a hop or a context:                  (max, sum, Σ weight e_d) of every shard → merged
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Protocol, cast, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.hops import turned
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.cluster.messages import (
    HitPreview,
    MemoryContent,
    PastQueries,
    PoolResult,
    Proposal,
    ProposalRequest,
    ShardHit,
    ShardsLost,
)
from dsearch.cluster.release import Release
from dsearch.cluster.search.merge import Candidates, merged, pooled, poolings, ranked_by_head
from dsearch.cluster.search.second_stage import RerankQuery, ShardedReranker, stage_over
from dsearch.engine.models.memory import memory_bytes
from dsearch.engine.ranking.coverage import mass_of
from dsearch.engine.ranking.memory import AT_ONCE
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.ranking.ranker import HOP_CANDIDATES
from dsearch.errors import InvalidRequest
from dsearch.search_options import COVERAGE_DOCUMENTS
from dsearch.store.filters import Filter
from dsearch.types import Mode

_ASKED_AGAIN = 4


@runtime_checkable
class Shards(Protocol):
    """The shards of one release, wherever they are."""

    def ask(self, method: str, requests: Mapping[int, Any]) -> dict[int, Any]:
        """Call a method of several shards at once, each with its request; return their answers.

        Raises:
            ShardsLost: some of them do not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class ShardQuery:
    """Options of a search over shards, before queries are projected.

    Attributes:
        texts: words of each query; None omits the keyword leg.
        mode: legs of the search.
        candidates: candidates of each leg and head.
        filter: condition on documents.
        required: phrases that documents must contain.
        excluded: phrases that documents must not contain.
        coverage: whether to compute the covered mass.
        preview: documents to send with the proposals; used for a single query with a single head.
        past: past queries of the head's memory.
        rerank: second stage; None without.
        collapse: whether the shards name the texts of candidates.
        depth: what each leg proposes to be listed; no more than the candidates when None.
    """

    texts: list[str] | None
    mode: Mode
    candidates: int
    filter: Filter | None = None
    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    coverage: bool = False
    preview: HitPreview | None = None
    past: PastQueries | None = None
    rerank: RerankQuery | None = None
    collapse: bool = False
    depth: int | None = None

    @property
    def words(self) -> list[str] | None:
        """The texts; None in dense mode."""
        return None if self.mode == "dense" else self.texts

    def question(self, folded: Float[Tensor, "batch heads encoder_dim"], head: Head) -> ProposalRequest:
        """Build the request to the shards for a head."""
        return ProposalRequest(
            folded=np.ascontiguousarray(folded.numpy(), np.float32),
            texts=self.texts,
            mode=self.mode,
            candidates=self.candidates,
            filter=self.filter,
            required=self.required,
            excluded=self.excluded,
            partition=self.coverage,
            keyword_weight=None if self.words is None else head.keyword_weight.detach().numpy(),
            temperature=float(head.temperature),
            weighting=head.keyword_weighting,
            preview=self.preview if folded.shape[:2] == (1, 1) else None,
            past=self.past,
            collapse=self.collapse,
            depth=None if self.depth == self.candidates else self.depth,
        )


@dataclass(frozen=True, slots=True)
class ShardedOutput:
    """Result of attention over all shards.

    Attributes:
        output: weights, scores and positions; `context` is empty.
        names: `text_name` of the document at each position; None if it was not requested.
        mass: share of the exact softmax that the candidates hold; None if it was not requested.
        hits: documents that came with the candidates, by position.
    """

    output: SearchOutput
    names: dict[int, int] | None
    mass: Float[Tensor, " batch"] | None
    hits: dict[int, ShardHit]


class ShardedAttention:
    """Attention over the documents of one release.

    Args:
        release: release to attend to.
        shards: its shards.
    """

    def __init__(self, release: Release, shards: Shards):
        self.release = release
        self._shards = shards

    def attend(
        self,
        states: Float[Tensor, "batch encoder_dim"],
        head: Head,
        query: ShardQuery,
        *,
        lost: frozenset[int] = frozenset(),
        hops: int | None = None,
        hop_strength: float | None = None,
    ) -> ShardedOutput:
        """Attend with query states and return the result of the last hop; options as of `SearchLayer`.

        Args:
            states: embeddings of the queries.
            head: head that projects them.
            query: texts and options.
            lost: numbers of shards to leave out.
            hops: rounds of search; when None, two if the head has learned a strength, else one.
            hop_strength: β; the head's own when None.

        Raises:
            InvalidRequest: fewer than one hop.
            ShardsLost: a shard does not respond.
        """
        strength = head.hop_strength if hop_strength is None else hop_strength
        if hops is None:
            hops = 2 if float(strength) else 1
        if hops < 1:
            raise InvalidRequest(f"hops={hops}; use an integer of at least 1")
        queries = head.queries(states)
        if head.memory is not None and query.mode != "keyword":
            past = self._past(head.memory, states)
            # What every document of a large collection borrows takes minutes.
            query = replace(query, past=past, coverage=query.coverage and past.borrowers)
        for _ in range(hops - 1):
            before = replace(query, coverage=False, preview=None, rerank=None, collapse=False, depth=None)
            answer = self._read(queries, head, before, lost)
            # Keys are linear: the key of a mean is the mean of the keys.
            keys = head.keys(pooled(self._pool(answer, head, HOP_CANDIDATES), answer.output.folded))
            queries = turned(queries, keys, strength)
        return self._read(queries, head, query, lost)

    def context(self, answer: ShardedOutput, head: Head) -> Float[Tensor, "batch value_dim"]:
        """Compute Σ_d weight(q, d) W_V e_d over the candidates.

        Raises:
            ShardsLost: a shard does not answer.
        """
        parts = self._pool(answer, head, answer.output.positions.shape[1])
        folded = answer.output.folded
        return (head.mixture_of(folded)[..., None] * head.values(pooled(parts, folded))).sum(1)

    def _read(
        self,
        queries: Float[Tensor, "batch heads key_dim"],
        head: Head,
        query: ShardQuery,
        lost: frozenset[int],
    ) -> ShardedOutput:
        folded = head.fold(queries)
        question = query.question(folded, head)
        numbers = [number for number in range(len(self.release.shards)) if number not in lost]
        answers = self._proposals(dict.fromkeys(numbers, question), head)
        offsets = {number: self.release.shards[number].offset for number in numbers}
        candidates, documents = merged(answers, offsets, question)
        reranker = None
        if query.rerank is not None:
            # A shard without documents has tokens as the others have.
            has_tokens = next(answer.has_tokens for answer in answers.values())
            stage = stage_over(query.rerank, has_tokens, head, query.mode)
            if stage is not None:
                reranker = ShardedReranker(self._shards.ask, stage, query.rerank)
        output = ranked_by_head(candidates, folded, head, question, reranker)
        mass = _mass(output, answers, documents, head) if query.coverage else None
        entries = {at: entry for answer in answers.values() for at, entry in answer.hits.items()}
        return ShardedOutput(output, _named(candidates), mass, entries)

    def _proposals(self, questions: Mapping[int, ProposalRequest], head: Head) -> dict[int, Proposal]:
        """Ask for proposals; shards that lack the memory get it, as often as another copy of one answers."""
        answers = cast("dict[int, Proposal]", self._shards.ask("propose", questions))
        for _ in range(_ASKED_AGAIN):
            lacking = [number for number, answer in answers.items() if answer.lacks_memory]
            if not lacking:
                return answers
            assert head.memory is not None
            shipped = MemoryContent(name_of(head.memory), memory_bytes(head.memory))
            self._shards.ask("learn", dict.fromkeys(lacking, shipped))
            again = {number: questions[number] for number in lacking}
            answers |= cast("dict[int, Proposal]", self._shards.ask("propose", again))
        raise ShardsLost(number for number, answer in answers.items() if answer.lacks_memory)

    def _past(self, memory: QueryMemory, states: Float[Tensor, "batch encoder_dim"]) -> PastQueries:
        rows, weights, _ = memory(states)
        documents = self.release.documents
        few = documents <= COVERAGE_DOCUMENTS and len(states) * documents <= AT_ONCE
        return PastQueries(name_of(memory), rows.numpy().copy(), weights.float().numpy(), few)

    def _pool(self, answer: ShardedOutput, head: Head, most: int) -> list[PoolResult]:
        requests = poolings(answer.output, self.release, head, most)
        return list(self._shards.ask("pool", requests).values()) if requests else []


def _named(candidates: Candidates) -> dict[int, int] | None:
    if candidates.names is None:
        return None
    return dict(zip(candidates.positions.ravel().tolist(), candidates.names.ravel().tolist(), strict=True))


_names: WeakKeyDictionary[QueryMemory, str] = WeakKeyDictionary()


def name_of(memory: QueryMemory) -> str:
    """Name of a memory by its content."""
    if memory not in _names:
        _names[memory] = sha256(memory_bytes(memory)).hexdigest()
    return _names[memory]


def _mass(
    output: SearchOutput, answers: Mapping[int, Proposal], documents: int, head: Head
) -> Float[Tensor, " batch"]:
    if output.positions.shape[1] and (output.sharing >= 0).sum(1).min() == documents:
        return torch.ones(len(output.positions))
    parts = [torch.tensor(answer.partition) for answer in answers.values()]
    whole = torch.stack(parts).logsumexp(0)
    return mass_of(output, whole, temperature=head.temperature, mixture=head.mixture_of(output.folded))

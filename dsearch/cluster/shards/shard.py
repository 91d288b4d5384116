"""`Shard`: part of a generation, opened from its folder; `LocalShards`: those of a release in this process.

A shard has no model: queries arrive projected and folded, so one set of shards serves every head. The inner
products and keyword scores that it returns equal those of one machine.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64

from dsearch.attention import PartialAttention
from dsearch.attention.arrays import as_like, keyword_part, numbers_of
from dsearch.attention.retrieval.kernel import raw_scores
from dsearch.attention.retrieval.maxp import best_passages
from dsearch.cluster import training as shard_training
from dsearch.cluster.messages import (
    GatherRequest,
    GatherResult,
    HitPreview,
    HitRequest,
    MemoryContent,
    PoolRequest,
    PoolResult,
    Proposal,
    ProposalRequest,
    RescoreRequest,
    RescoreResult,
    ShardAttendRequest,
    ShardAttention,
    ShardGradients,
    ShardHit,
)
from dsearch.cluster.release import FREQUENCIES_NAME, Release, ShardManifest
from dsearch.cluster.search import second_stage
from dsearch.cluster.shards.memory import RecalledHere, ShardMemories
from dsearch.engine.filters import FilteredSnapshots
from dsearch.engine.indexing.leases import Lease
from dsearch.engine.indexing.releases import ROWS_NAME
from dsearch.engine.ranking.candidates import SearchLegs
from dsearch.engine.ranking.coverage import whole_log_partition
from dsearch.engine.search.arrangement import text_name
from dsearch.engine.search.hits import highlighter
from dsearch.engine.snapshot import NONE, Fresh, Snapshot
from dsearch.errors import CorruptData
from dsearch.index import CorpusStatistics, Generation, ParsedQuery
from dsearch.store import Store
from dsearch.types import Document, Passage


class Shard:
    """An open shard; never changed.

    Args:
        manifest: its files.
        store: its documents.
        state: its part of the generation.
        rows: row of each document in the home; None in a release of before query memories.
        lease: keeps its folder while it is open.
    """

    def __init__(
        self,
        manifest: ShardManifest,
        store: Store,
        state: Snapshot,
        rows: Int64[np.ndarray, " documents"] | None = None,
        lease: Lease | None = None,
    ):
        self.manifest = manifest
        self._lease = lease
        self._memories = ShardMemories(state, rows)
        self.store = store
        self.state = state
        self._filtered = FilteredSnapshots(store)
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: Path, digest: str | None = None) -> Shard:
        """Open the shard in `folder` after verifying every file by its SHA-256.

        Args:
            folder: folder of the shard.
            digest: expected digest of its manifest; None accepts any.

        Raises:
            CorruptData: a file is missing or changed, or this is another shard.
            UnsupportedFormat.
        """
        try:
            lease = Lease(folder)
        except OSError as error:
            raise CorruptData(
                f"{folder}: cannot be opened ({error}); publish the collection again"
            ) from error
        try:
            return cls._open(folder, digest, lease)
        except BaseException:
            lease.release()
            raise

    @classmethod
    def _open(cls, folder: Path, digest: str | None, lease: Lease) -> Shard:
        manifest = ShardManifest.read(folder, digest)
        manifest.verify(folder)
        generation = Generation.open(folder / "generations" / f"{manifest.generation:06d}")
        if generation.keyword is None or len(generation) != manifest.documents:
            raise CorruptData(f"{folder}: generation and shard.json do not fit each other; split it again")
        frequencies = np.load(folder / FREQUENCIES_NAME, allow_pickle=False)
        keyword = generation.keyword.of_corpus(CorpusStatistics(manifest.total, frequencies))
        generation.keyword = keyword
        nothing = np.empty(0, np.int64)
        fresh = Fresh.of(nothing, np.empty((0, generation.manifest.encoder_dim), np.float32), [], keyword)
        state = Snapshot.of(generation, fresh, nothing, manifest.sequence)
        rows = np.load(folder / ROWS_NAME, allow_pickle=False) if (folder / ROWS_NAME).exists() else None
        store = Store.open(folder, readonly=True)
        return cls(manifest, store, state, rows, lease)

    def close(self) -> None:
        """Close its files, which may be removed then."""
        self.store.close()
        if self._lease is not None:
            self._lease.release()

    def propose(self, question: ProposalRequest) -> Proposal:
        """Propose the candidates of each leg, with the parts of their logits."""
        with torch.inference_mode():
            state = self._filtered.restricted(self.state, question.filter).with_bm25(question.weighting)
            if question.required or question.excluded:
                state = state.matching_phrases(ParsedQuery("", question.required, question.excluded))
            past = None
            if question.past is not None:
                past = self._memories.of(question.past, state)
                if past is None:
                    return _without_memory(question, state)
            legs = SearchLegs(
                state,
                question.texts,
                mode=question.mode,
                candidates=question.candidates,
                further=None if past is None else past.best(question.candidates),
            )
            folded, is_extra = torch.as_tensor(question.folded), None
            positions = legs.propose(folded)
            if question.depth is not None:
                further = None if past is None else past.best(question.depth)
                positions, is_extra = legs.deeper(folded, positions, question.depth, further)
            positions = np.ascontiguousarray(positions)
            dense, keys = _dense(state, question, positions)
            keyword = legs.keyword_scores(positions)
            proposal = Proposal(
                documents=state.documents,
                positions=np.where(positions == NONE, NONE, positions + self.manifest.offset),
                dense=dense,
                keyword=np.zeros(positions.shape, np.float32) if keyword is None else keyword,
                keys=keys,
                partition=_partition(state, question, legs, past) if question.partition else None,
                memory=None if past is None else past.scores(positions),
                by_memory=None if past is None else past.proposable(positions),
                has_tokens=state.tokens is not None,
                names=self._names(state, positions) if question.collapse else None,
                is_extra=is_extra,
            )
        preview = question.preview
        return proposal if preview is None else self._with_preview(proposal, question, preview)

    def learn(self, shipped: MemoryContent) -> bool:
        """Take a query memory; raises NotInCluster if the release is older than query memories."""
        self._memories.learn(shipped)
        return True

    def rerank(self, request: RescoreRequest) -> RescoreResult:
        """Return what the documents of reranked candidates say; see `second_stage.py`."""
        return second_stage.rerank(self.state, self.manifest.offset, request)

    def pool(self, pooling: PoolRequest) -> PoolResult:
        """Compute the (max, sum, context) triple of some candidates, with embeddings as values."""
        with torch.inference_mode():
            values = torch.as_tensor(self.state.key_embeddings(pooling.keys)).double()
            logits = torch.as_tensor(pooling.logits).double()
            batch, heads, dimension = *logits.shape[:2], values.shape[-1]
            context, maximum, total = (
                torch.zeros(batch, heads, dimension),
                torch.full((batch, heads), -torch.inf),
                torch.zeros(batch, heads),
            )
            for query in range(batch):
                for head in range(heads):
                    part = PartialAttention.of(logits[query, head], values[query, head])
                    maximum[query, head], total[query, head] = part.max, part.sum
                    context[query, head] = part.context
            return PoolResult(maximum.numpy(), total.numpy(), context.numpy())

    def show(self, request: HitRequest) -> list[ShardHit]:
        """Return documents with explanations and highlights."""
        state, offset = self.state.with_bm25(request.weighting), self.manifest.offset
        positions = np.array(request.positions, np.int64) - offset
        documents = self.store.documents(state.rows(positions))
        keys = request.keys or [NONE] * len(documents)
        by_words = request.highlight and request.meaning is None
        pieces = highlighter(state.keyword, request.queries) if by_words else None
        meaning = second_stage.shown_meaning(state, request.meaning) if request.highlight else None
        entries: list[ShardHit] = []
        for number, (document, position) in enumerate(zip(documents, positions.tolist(), strict=True)):
            terms: dict[str, float] = {}
            if request.explain and request.queries is not None:
                terms = state.keyword_terms(request.queries[number], position)
            highlights = None if pieces is None else pieces(number, document)
            if meaning is not None:
                highlights = meaning(number, position, document)
            entries.append(ShardHit(document, self._passage(keys[number], document), terms, highlights))
        return entries

    def attend(self, request: ShardAttendRequest) -> ShardAttention:
        """Compute attention over every document, for training; see `training.py`."""
        return shard_training.attend(self.state, request)

    def attend_backward(self, upstream: ShardGradients) -> shard_training.Gradient:
        """Return the shard's part of the gradient."""
        return shard_training.attend_backward(self.state, upstream)

    def gather(self, request: GatherRequest) -> GatherResult:
        """Return embeddings and keyword scores of some documents."""
        return shard_training.gather(self.state, self.manifest.offset, request)

    def _names(
        self, state: Snapshot, positions: Int64[np.ndarray, "batch candidates"]
    ) -> Int64[np.ndarray, "batch candidates"]:
        different = np.unique(positions[positions != NONE])
        documents = self.store.documents(state.rows(different))
        of_text = np.array([NONE, *map(text_name, documents)], np.int64)
        return of_text[np.where(positions == NONE, 0, 1 + np.searchsorted(different, positions))]

    def _with_preview(self, proposal: Proposal, question: ProposalRequest, preview: HitPreview) -> Proposal:
        """Add documents of the best candidates; with one head, their order here is that of all shards."""
        dense: Any = proposal.dense
        keyword, memory = None, None if proposal.memory is None else as_like(proposal.memory, dense)
        if (weight := question.keyword_weight) is not None:
            keyword = keyword_part(as_like(weight, dense), as_like(proposal.keyword, dense))
        scores = numbers_of(raw_scores(dense, keyword, memory))[0, 0]
        valid = proposal.positions[0] != NONE
        best = np.argsort(np.where(valid, -scores, np.inf), kind="stable")[: min(preview.most, valid.sum())]
        positions = proposal.positions[0, best].tolist()
        documents = self.show(
            HitRequest(
                positions=positions,
                keys=None if proposal.keys is None else proposal.keys[0, 0, best].tolist(),
                queries=None if preview.words is None else [preview.words] * len(positions),
                explain=preview.explain,
                highlight=preview.highlight,
                weighting=question.weighting,
            )
        )
        return replace(proposal, hits=dict(zip(positions, documents, strict=True)))

    def _passage(self, key: int, document: Document) -> Passage | None:
        passages = self.state.passages
        span = None if passages is None or key == NONE else passages.span_of(key)
        if span is None:
            return None
        ordinal, start, end = span
        return Passage(ordinal, start, end, document.text[start:end])


def _dense(
    state: Snapshot, question: ProposalRequest, positions: Int64[np.ndarray, "batch candidates"]
) -> tuple[Float32[np.ndarray, "batch heads candidates"], Int64[np.ndarray, "batch heads candidates"] | None]:
    """Compute inner products of the candidates, and the keys that they belong to.

    Sums are in float64 and then rounded, so documents with equal embeddings tie in any shard. Sums of float32
    in blocks of different sizes do not guarantee that.
    """
    batch, heads, _ = question.folded.shape
    if question.mode == "keyword" or positions.shape[1] == 0:
        return np.zeros((batch, heads, positions.shape[1]), np.float32), None
    folded = question.folded.astype(np.float64)
    dense = folded @ state.embeddings(positions).astype(np.float64).swapaxes(1, 2)
    beside = None if state.passages is None else state.passages.beside(positions)
    if beside is None or state.passages is None:
        return dense.astype(np.float32), None
    columns, further = beside
    others = folded @ state.passages.embeddings(further).astype(np.float64).swapaxes(1, 2)
    every = torch.as_tensor(np.concatenate([dense, others], axis=2).astype(np.float32))
    first = np.broadcast_to(np.arange(positions.shape[1], dtype=np.int64), positions.shape)
    owners = torch.as_tensor(np.concatenate([first, columns], axis=1))
    taken = best_passages(every, owners[:, None], positions.shape[1])
    numbers = np.concatenate([positions, further + state.positions], axis=1)[:, None]
    numbers = np.broadcast_to(numbers, (batch, heads, numbers.shape[2]))
    keys = np.take_along_axis(numbers, taken.numpy(), 2)
    return every.gather(2, taken).numpy(), np.where(positions[:, None] == NONE, NONE, keys)


def _without_memory(question: ProposalRequest, state: Snapshot) -> Proposal:
    batch, heads, _ = question.folded.shape
    nothing = np.zeros((batch, 0), np.float32)
    positions, dense = np.zeros((batch, 0), np.int64), np.zeros((batch, heads, 0), np.float32)
    return Proposal(
        state.documents,
        positions,
        dense,
        nothing,
        None,
        None,
        lacks_memory=True,
        has_tokens=state.tokens is not None,
    )


def _partition(
    state: Snapshot, question: ProposalRequest, legs: SearchLegs, past: RecalledHere | None
) -> Float32[np.ndarray, "batch heads"]:
    weight = question.keyword_weight
    return whole_log_partition(
        state,
        torch.as_tensor(question.folded),
        question.texts,
        mode=question.mode,
        keyword_weight=None if weight is None else torch.as_tensor(weight),
        temperature=torch.tensor(question.temperature),
        dense_of_all=legs.dense_of_all,
        keyword_of_all=legs.keyword_of_all,
        memory_of_all=None if past is None else past.of_all(),
    ).numpy()


class LocalShards:
    """Every shard of a release, opened here.

    Args:
        folder: folder of the release.

    Raises:
        CorruptData, UnsupportedFormat.
    """

    def __init__(self, folder: Path):
        self.release = Release.read(folder)
        self.shards = [Shard.open(folder / entry.name, entry.digest) for entry in self.release.shards]

    def ask(self, method: str, requests: Mapping[int, Any]) -> dict[int, Any]:
        """Call a method of several shards, each with its request; return their answers."""
        return {at: getattr(self.shards[at], method)(argument) for at, argument in requests.items()}

    def close(self) -> None:
        """Close the shards."""
        for shard in self.shards:
            shard.close()

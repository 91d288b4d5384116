"""`Ranker`: attention of queries over documents, as the formulas of head and scores compute it.

    query states → f_h → fold → candidates (FAISS ∪ BM25 ∪ fresh rows) → exact logits → softmax per head
                                                                       → mixture, context, values

Candidates are proposed without gradients. Everything else is computed by operations that tensors and NumPy
arrays share (attention/arrays.py): with a `FixedHead` and states in NumPy it answers searches without torch,
and as a `SearchLayer` (layer.py), whose head is a module, it is differentiable.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64

from dsearch.attention.arrays import Array, at_least, without_gradients, zeros
from dsearch.attention.retrieval.fixed_head import HeadFormulas
from dsearch.attention.retrieval.hops import refine
from dsearch.attention.retrieval.kernel import Weighing
from dsearch.attention_options import CANDIDATES, OVER, Over
from dsearch.engine.ranking.candidates import SearchLegs
from dsearch.engine.ranking.field_match import FieldMatch
from dsearch.engine.ranking.output import Found, SearchOutput, context_of, ranked
from dsearch.engine.ranking.scores import (
    check_bias,
    checked_pooling,
    checked_score,
    checked_temperature,
    chosen_stages,
    ranks_by_inner_product,
)
from dsearch.engine.ranking.scoring import EmbedRows, Scoring
from dsearch.engine.snapshot import Snapshot
from dsearch.errors import InvalidRequest
from dsearch.search_options import RERANK_CANDIDATES
from dsearch.types import Mode

if TYPE_CHECKING:
    from dsearch.attention import Score
    from dsearch.attention.memory_rows import Recalled
    from dsearch.engine.ranking.memory import SnapshotMemory
    from dsearch.engine.ranking.resident import ResidentEmbeddings
    from dsearch.engine.ranking.second_stage import Reranker
    from dsearch.engine.ranking.whole import Whole
    from dsearch.engine.snapshot import QueryTokens

HOP_CANDIDATES = 10  # what a hop pools: the best few speak for the query, the rest for the corpus


class QueryParts(NamedTuple):
    """Parts that all rounds of a search share: candidate generation, scores, and recalled past queries."""

    legs: SearchLegs
    scoring: Scoring
    recalled: Recalled | None  # None without a query memory


class Ranker:
    """Attention of query states over documents; where it is set, `bias` [positions] adds to their scores.

    Args:
        snapshot: the documents.
        head: the learned part; its parameters are this module's.
        mode: "hybrid", "dense" or "keyword".
        candidates: number of documents that each leg proposes for each head; they share the attention.
        depth: number that each leg proposes for `ranked` to list; None for no more than the candidates. Those
            behind them share no attention; see `Weighing.is_extra`.
        over: "candidates", or "all": the attention is shared by every document, exactly (whole.py), and
            `candidates` is the number that is listed.
        hops: rounds of search; None is 2 while the hop strength is not 0, as in a tuned model, otherwise 1.
        hop_strength: g; None takes the head's learned one.
        score: a name (see scores.py); a `FieldMatch`, which compares the texts with a field; or any function
            or module with the interface of `dsearch.attention.SCORES`, which then learns with the layer; the
            inner product proposes. "dot" is the head's learned score where it has one.
        pooling: "soft", "hard" or "uniform" over the candidates; or "exp", "relu" or "sigmoid" of each.
        width: width of a kernel score.
        temperature: divisor of the scores; None takes the head's learned one, and 1 for a kernel.
        stages, rerank_candidates: of a second stage (second_stage.py); see `chosen_stages`.

    Raises:
        InvalidRequest: an unknown option or one out of range; a score for mode "keyword", which has its own.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        head: HeadFormulas,
        *,
        mode: Mode = "hybrid",
        candidates: int = CANDIDATES,
        depth: int | None = None,
        over: Over = "candidates",
        hops: int | None = None,
        hop_strength: float | None = None,
        score: str | Score | FieldMatch = "dot",
        pooling: str = "soft",
        width: float | None = None,
        temperature: float | None = None,
        stages: int | None = None,
        rerank_candidates: int = RERANK_CANDIDATES,
    ):
        if mode not in ("hybrid", "dense", "keyword"):
            raise InvalidRequest(f"mode={mode!r}; use hybrid, dense or keyword")
        if over not in OVER:
            raise InvalidRequest(f"over={over!r}; use candidates or all")
        for name, value in {"candidates": candidates, "hops": hops}.items():
            if value is not None and value < 1:
                raise InvalidRequest(f"{name}={value}; use an integer of at least 1")
        self.head, self.snapshot = head, snapshot
        self.mode: Mode = mode
        self.over: Over = over
        self.candidates, self.fixed_hops, self.hop_strength = candidates, hops, hop_strength
        self.depth = candidates if depth is None else depth
        self.match = score if isinstance(score, FieldMatch) else None
        # Vectors have no part in a match: it is flat in them, and needs no temperature.
        if score == "dot" and head.learned_score is not None:  # its parameters are the head's alone
            object.__setattr__(self, "score", checked_score(head.learned_score, width))
        else:
            self.score = checked_score("exact_match" if isinstance(score, FieldMatch) else score, width)
        if mode == "keyword" and score != "dot":
            raise InvalidRequest(
                "mode='keyword' scores by keywords alone; leave score out, or use dense or hybrid"
            )
        self.pooling = checked_pooling(pooling)
        self._temperature = checked_temperature(temperature, self.score)
        self._memory: SnapshotMemory | None = None
        self.rerank_candidates = rerank_candidates
        self.bias: Float[Array, " positions"] | None = None
        self.resident: ResidentEmbeddings | None = None
        plain = ranks_by_inner_product(self.score) and over == "candidates"
        self.stages = chosen_stages(
            stages, head, has_tokens=snapshot.tokens is not None, mode=mode, plain=plain
        )

    @property
    def snapshot(self) -> Snapshot:
        """The documents, whose keywords count as the head has it: k1 and b can be its own."""
        weighting = self.head.keyword_weighting
        if weighting != self._weighting:  # another head was loaded into this one
            self._weighting, self._snapshot = weighting, self._snapshot.with_bm25(weighting)
        return self._snapshot

    @snapshot.setter
    def snapshot(self, snapshot: Snapshot) -> None:
        """Search another state, or other documents of the same dimension."""
        self._weighting = self.head.keyword_weighting
        self._snapshot = snapshot.with_bm25(self._weighting)

    @property
    def hops(self) -> int:
        """Rounds of search, by the present hop strength where no number was given."""
        if self.fixed_hops is not None:
            return self.fixed_hops
        return 2 if (self.head.hop_strength.item() if self.hop_strength is None else self.hop_strength) else 1

    @property
    def temperature(self) -> Float[Array, ""] | float:
        """Temperature of the softmax: an explicit one, 1 if the score needs none, else the head's own."""
        return self.head.temperature if self._temperature is None else self._temperature

    def ranked(
        self,
        query_states: Float[Array, "batch encoder_dim"],
        texts: Sequence[str] | None,
        tokens: Sequence[QueryTokens] | None = None,
    ) -> SearchOutput:
        """Rank for display: without gradients, and with a context that has no numbers.

        If candidate generation scored every document, those scores are reused and no embedding of a
        candidate is read; `keys_of` then returns the keys that were chosen.
        """
        with without_gradients():
            return self._search(query_states, texts, None, None, pooled=False, tokens=tokens)

    def keys_of(self, output: SearchOutput, most: int) -> Int64[np.ndarray, "batch heads shown"] | None:
        """The keys that each head took of the first `most` candidates that `ranked` found; None where every
        candidate has but one, or keywords alone rank."""
        if output.keys is not None:
            return output.keys[:, :, :most]
        score = None if self.mode == "keyword" else self.score
        return Scoring(self.snapshot, self.head, score).best_keys(output.folded, output.positions[:, :most])

    @property
    def memory(self) -> SnapshotMemory:
        """The head's memory over these documents."""
        memory, bound = self.head.memory, self._memory
        if memory is None:  # no assertion: torch asks modules for all that they have
            raise AttributeError("memory of a layer whose head has none")
        if bound is None or bound.memory is not memory or bound.snapshot is not self._snapshot:
            from dsearch.engine.ranking.memory import SnapshotMemory

            bound = self._memory = SnapshotMemory(memory, self._snapshot)
        return bound

    @property
    def reranker(self) -> Reranker:
        """The second stage over these documents."""
        from dsearch.engine.ranking.second_stage import Reranker, stage_of

        if self._snapshot.tokens is None:
            raise AttributeError("reranker of documents without tokens")
        return Reranker(self._snapshot, stage_of(self.head), self.rerank_candidates)

    def weighing_of(self, folded: Float[Array, "batch heads encoder_dim"]) -> Weighing:
        """Weighting of the candidates of these queries."""
        return Weighing(self.head.heads, self.head.mixture_of(folded), self.temperature, self.pooling)

    def _search(
        self,
        query_states: Float[Array, "batch encoder_dim"],
        texts: Sequence[str] | None,
        embed: EmbedRows | None,
        values: Float[Array, "positions value_dim"] | None,
        pooled: bool = True,
        shares: bool = False,
        tokens: Sequence[QueryTokens] | None = None,
    ) -> SearchOutput:
        """Refine the queries hop by hop, then attend; with `shares` the output has the covered mass."""
        queries, parts = self._after_hops(query_states, texts, embed)
        attended = self._attend(queries, parts, values, pooled=pooled, tokens=tokens)
        if shares and embed is None and self.over == "candidates":
            whole = self._whole(queries, attended.folded, parts)
            attended = attended._replace(covered_mass=whole.share(attended.first_raw, attended.positions))
        return attended

    def _after_hops(
        self,
        query_states: Float[Array, "batch encoder_dim"],
        texts: Sequence[str] | None,
        embed: EmbedRows | None = None,
    ) -> tuple[Float[Array, "batch heads key_dim"], QueryParts]:
        """Return the queries of the last round in key space, and what proposes and scores for them."""
        queries = self.head.queries(query_states)
        parts = self._parts(texts, self._recalled(query_states), embed)
        for _ in range(self.hops - 1):
            queries = self._hop(queries, parts)
        return queries, parts

    def _recalled(self, query_states: Float[Array, "batch encoder_dim"]) -> Recalled | None:
        """Past queries that these attend to; None without any, and where they have no part in the score.

        It was trained beside inner products: a kernel has another scale, and keywords alone have no state.
        """
        memory = self.head.memory
        if not memory or self.mode == "keyword" or not ranks_by_inner_product(self.score):
            return None
        return memory(query_states)

    def _parts(
        self, texts: Sequence[str] | None, recalled: Recalled | None, embed: EmbedRows | None
    ) -> QueryParts:
        matches = None
        if self.match is not None:
            assert texts is not None
            self.match.require(self.snapshot.positions)
            matches = self.match.of_all(texts)
        legs = SearchLegs(
            self.snapshot,
            texts,
            mode=self.mode,
            candidates=self.candidates,
            further=None if recalled is None else self.memory.best(recalled, self.candidates),
            matches=matches,
            resident=self.resident,
        )
        score = None if self.mode == "keyword" else self.score
        check_bias(self.bias, self.snapshot.positions)
        scoring = Scoring(self.snapshot, self.head, score, embed, matches, self.bias, self.resident)
        return QueryParts(legs, scoring, recalled)

    def _hop(
        self, queries: Float[Array, "batch heads key_dim"], parts: QueryParts
    ) -> Float[Array, "batch heads key_dim"]:
        """Turn each query towards the keys of its best few documents."""
        attended = self._attend(queries, parts, least=HOP_CANDIDATES)
        best = attended.positions[:, :HOP_CANDIDATES]
        head_weights = attended.head_weights[..., :HOP_CANDIDATES]
        head_weights = head_weights / at_least(head_weights.sum(-1)[..., None], 1e-30)
        strength = self.head.hop_strength if self.hop_strength is None else self.hop_strength
        if attended.keys is None:
            return refine(queries, head_weights, parts.scoring.keys(best, queries), strength)
        # Of long documents each head has the keys of its own best passages.
        keys = parts.scoring.keys_taken(attended.keys[:, :, :HOP_CANDIDATES], queries)
        return refine(queries[:, :, None], head_weights[:, :, None], keys, strength)[:, :, 0]

    def _attend(
        self,
        queries: Float[Array, "batch heads key_dim"],
        parts: QueryParts,
        values: Float[Array, "positions value_dim"] | None = None,
        *,
        pooled: bool = True,
        least: int = 1,
        tokens: Sequence[QueryTokens] | None = None,
    ) -> SearchOutput:
        """Candidates, their scores and weights, and the context, in the order of the hits.

        Args:
            queries: those of one round, in key space.
            parts: what proposes and scores for them.
            values: row of each position to pool in place of W_V e_d.
            pooled: False for display: no context, scores of candidate generation are reused, and documents
                behind the candidates are listed.
            least: smallest number of documents to list where all share the attention.
            tokens: of each query, for a second stage.
        """
        head, legs = self.head, parts.legs
        folded = head.fold(queries)
        weighing = self.weighing_of(folded)
        if self.over == "all":
            whole = self._whole(queries, folded, parts)
            found = self._found(
                queries, folded, parts, whole.best(max(self.candidates, least)), reuse=not pooled
            )
            everything = whole.attended(values)
            weighing = whole.among_all(everything)
        else:
            positions, is_extra = self._proposed(folded, parts, deeper=not pooled)
            found = self._found(queries, folded, parts, positions, is_extra, reuse=not pooled)
            everything = None
        second_stage = None
        if tokens is not None and self.stages == 2:
            second_stage = partial(self.reranker.terms, tokens)
        context_of_ranking = None
        if pooled:
            context_of_ranking = partial(context_of, head, found.scored, values=values, whole=everything)
        output, _ = ranked(
            found,
            head,
            folded,
            weighing,
            all_reached=self.mode == "keyword" or ranks_by_inner_product(self.score),
            second_stage=second_stage,
            context_of=context_of_ranking,
        )
        projected = None
        if pooled and values is None and head.output is not None:
            projected = head.output(output.context)
        output = output._replace(
            recalled=parts.recalled,
            output=projected,
            dense_of_all=legs.dense_of_all,
            keyword_of_all=legs.keyword_of_all,
        )
        if everything is None:
            return output
        covered = zeros((len(output.scores),), output.scores) + 1
        return output._replace(documents=everything.documents, covered_mass=covered)

    def _found(
        self,
        queries: Float[Array, "batch heads key_dim"],
        folded: Float[Array, "batch heads encoder_dim"],
        parts: QueryParts,
        positions: Int64[np.ndarray, "batch candidates"],
        is_extra: Bool[np.ndarray, "batch candidates"] | None = None,
        *,
        reuse: bool,
    ) -> Found:
        """Score documents; with `reuse` by the scores of candidate generation where it has them."""
        legs, scoring, recalled = parts
        scored = scoring.scores_of_legs(folded, legs, positions) if reuse else None
        return Found(
            positions,
            scoring.scored(queries, folded, positions) if scored is None else scored,
            legs.keyword_scores(positions),
            None if recalled is None else self.memory.scores(recalled, positions),
            is_extra,
        )

    def _whole(
        self,
        queries: Float[Array, "batch heads key_dim"],
        folded: Float[Array, "batch heads encoder_dim"],
        parts: QueryParts,
    ) -> Whole:
        """Every document as a candidate."""
        from dsearch.engine.ranking.whole import Whole

        remembered = None if parts.recalled is None else partial(self.memory.scores, parts.recalled)
        return Whole(parts.scoring, self.weighing_of(folded), parts.legs, queries, folded, remembered)

    def _proposed(
        self, folded: Float[Array, "batch heads encoder_dim"], parts: QueryParts, *, deeper: bool
    ) -> tuple[Int64[np.ndarray, "batch candidates"], Bool[np.ndarray, "batch candidates"] | None]:
        """Positions of the candidates; with `deeper` further ones behind them, and True for those."""
        legs, _, recalled = parts
        positions = legs.propose(folded)
        if not deeper or self.depth <= self.candidates:
            return positions, None
        past = None if recalled is None else self.memory.best(recalled, self.depth)
        return legs.deeper(folded, positions, self.depth, past)

"""`SearchLayer`: a collection as a layer of a network. Requests are served by the code that has gradients.

    query states → f_h → fold → candidates (FAISS ∪ BM25 ∪ fresh rows) → exact logits → softmax per head
                                                                       → mixture, context, values

Candidates are proposed without gradients; everything computed from them has gradients. The layer's parameters
are the head's; the corpus is never part of `state_dict`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from dsearch.attention import Score, pool, refine
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import Recalled
from dsearch.attention.scores import keyword_part
from dsearch.attention_options import CANDIDATES, OVER, Over
from dsearch.engine.ranking.candidates import SearchLegs
from dsearch.engine.ranking.field_match import FieldMatch
from dsearch.engine.ranking.memory import SnapshotMemory
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.ranking.parts import (
    by_score_then_position,
    check_bias,
    check_texts,
    check_values,
    rows_at,
)
from dsearch.engine.ranking.resident import ResidentEmbeddings
from dsearch.engine.ranking.scores import (
    checked_pooling,
    checked_score,
    checked_temperature,
    ranks_by_inner_product,
)
from dsearch.engine.ranking.scoring import EmbedRows, Scoring, Weighing, under_autocast_of_now
from dsearch.engine.ranking.second_stage import FirstStage, Reranker, chosen_stages, stage_of
from dsearch.engine.ranking.whole import Whole
from dsearch.engine.snapshot.snapshot import NONE, Snapshot
from dsearch.engine.snapshot.tokens_of_query import QueryTokens
from dsearch.errors import InvalidRequest
from dsearch.search_options import RERANK_CANDIDATES
from dsearch.types import Mode

HOP_CANDIDATES = 10  # what a hop pools: the best few speak for the query, the rest for the corpus


class SearchLayer(nn.Module):
    """Attention of query states over documents; where it is set, `bias` [positions] adds to their scores.

    Args:
        snapshot: the documents.
        head: the learned part; its parameters are this module's.
        mode: "hybrid", "dense" or "keyword".
        candidates: number of documents that each leg proposes for each head.
        over: "candidates", or "all": the attention is shared by every document, exactly (whole.py), and
            `candidates` is the number that is listed.
        hops: rounds of search; None is 2 if the hop strength is not 0, as in a tuned model, otherwise 1.
        hop_strength: g; None takes the head's learned one.
        score: a name (see scores.py); a `FieldMatch`, which compares the texts with a field; or any function
            or module with the interface of `dsearch.attention.SCORES`, which then learns with the layer; the
            inner product proposes. "dot" is the head's learned score where it has one.
        pooling: "soft", "hard" or "uniform", over the candidates.
        width: width of a kernel score.
        temperature: divisor of the scores; None takes the head's learned one, and 1 for a kernel.
        stages, rerank_candidates: of a second stage (second_stage.py); see `chosen_stages`.

    Raises:
        InvalidRequest: an unknown option or one out of range; a score for mode "keyword", which has its own.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        head: Head,
        *,
        mode: Mode = "hybrid",
        candidates: int = CANDIDATES,
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
        super().__init__()
        if mode not in ("hybrid", "dense", "keyword"):
            raise InvalidRequest(f"mode={mode!r}; use hybrid, dense or keyword")
        if over not in OVER:
            raise InvalidRequest(f"over={over!r}; use candidates or all")
        if hops is None:
            hops = 2 if (head.hop_strength.item() if hop_strength is None else hop_strength) else 1
        for name, value in {"candidates": candidates, "hops": hops}.items():
            if value < 1:
                raise InvalidRequest(f"{name}={value}; use an integer of at least 1")
        self.head, self.snapshot = head, snapshot
        self.mode: Mode = mode
        self.over: Over = over
        self.candidates, self.hops, self.hop_strength = candidates, hops, hop_strength
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
        self.bias: Float[Tensor, " positions"] | None = None
        self.resident: ResidentEmbeddings | None = None
        plain = ranks_by_inner_product(self.score) and over == "candidates"
        self.stages = chosen_stages(stages, snapshot.token_dims, head, mode=mode, plain=plain)

    @property
    def snapshot(self) -> Snapshot:
        """The documents, whose keywords count as the head has it: k1 and b can be its own."""
        weighting = self.head.keyword_weighting
        if weighting != self._weighting:  # another head was loaded into this one
            self._weighting, self._snapshot = weighting, self._snapshot.weighed(weighting)
        return self._snapshot

    @snapshot.setter
    def snapshot(self, snapshot: Snapshot) -> None:
        """Search another state, or other documents of the same dimension."""
        self._weighting = self.head.keyword_weighting
        self._snapshot = snapshot.weighed(self._weighting)

    @property
    def temperature(self) -> Float[Tensor, ""] | float:
        """Temperature of the softmax: an explicit one, 1 if the score needs none, else the head's own."""
        return self.head.temperature if self._temperature is None else self._temperature

    def forward(
        self,
        query_states: Float[Tensor, "batch encoder_dim"],
        texts: Sequence[str] | None = None,
        *,
        embed: EmbedRows | None = None,
        values: Float[Tensor, "positions value_dim"] | None = None,
        tokens: Sequence[QueryTokens] | None = None,
    ) -> SearchOutput:
        """Search with each query state, and with its text for the keyword leg.

        Args:
            query_states: what the encoder gives for a query, or what another network gives in its place.
            texts: the words of each query; without them the keyword leg finds and adds nothing.
            embed: gives the embeddings of positions in the graph, for gradients into the document encoder;
                the stored ones when None. What it gives is all there is of a document: no passages.
            values: what is pooled, a row for each position of the snapshot: labels, numbers, any field (see
                `Collection.field_values`); gradients reach it. W_V e_d when None.
            tokens: of each query, for the second stage; without them there is only the first.

        Raises:
            DimensionMismatch: states of another length than the embeddings; not one value a position.
            InvalidRequest: another number of texts than states; mode "keyword" without texts.

        Under autocast it computes in float32 all the same: rounded to half precision, the best scores tie.
        """
        check_texts(len(query_states), texts, self.mode, None if self.match is None else self.match.field)
        check_values(values, self.snapshot.positions)
        if torch.compiler.is_compiling():
            # FAISS and NumPy have no graph: the layer runs as it is between the compiled parts around it.
            uncompiled: Callable[..., SearchOutput] = torch.compiler.disable(self._search)  # pyright: ignore
            return uncompiled(query_states, texts, embed, values, None, tokens=tokens, shares=True)
        return self._search(query_states, texts, embed, values, None, tokens=tokens, shares=True)

    def ranked(
        self,
        query_states: Float[Tensor, "batch encoder_dim"],
        texts: Sequence[str] | None,
        tokens: Sequence[QueryTokens] | None = None,
    ) -> SearchOutput:
        """Run `forward` for display: without gradients, and with a context that has no numbers.

        If candidate generation scored every document, those scores are reused and no embedding of a
        candidate is read; `keys_of` then returns the keys that were chosen.
        """
        with torch.no_grad():
            return self._search(query_states, texts, None, None, pooled=False, tokens=tokens)

    def keys_of(self, output: SearchOutput, most: int) -> Int64[np.ndarray, "batch heads shown"] | None:
        """The keys that each head took of the first `most` candidates that `ranked` found; None where every
        candidate has but one, or keywords alone rank."""
        if output.keys is not None:
            return output.keys[:, :, :most]
        score = None if self.mode == "keyword" else self.score
        return Scoring(self.snapshot, self.head, score).best_keys(output.folded, output.positions[:, :most])

    def among(
        self,
        query_states: Float[Tensor, "batch encoder_dim"],
        texts: Sequence[str] | None,
        positions: Int64[np.ndarray, "batch candidates"],
    ) -> SearchOutput:
        """Attention over these candidates, in place of those that it would propose; −1 = none.

        What a hop refines the query by is proposed all the same.
        """
        last = np.where(positions == NONE, np.iinfo(np.int64).max, positions)
        ascending = np.take_along_axis(positions, last.argsort(axis=1, kind="stable"), 1)
        return self._search(query_states, texts, None, None, ascending)

    @property
    def memory(self) -> SnapshotMemory:
        """The head's memory over these documents."""
        memory, bound = self.head.memory, self._memory
        assert memory is not None
        if bound is None or bound.memory is not memory or bound.snapshot is not self._snapshot:
            bound = self._memory = SnapshotMemory(memory, self._snapshot)
        return bound

    def _recalled(self, query_states: Float[Tensor, "batch encoder_dim"]) -> Recalled | None:
        """Past queries that these attend to; None without any, and where they have no part in the score.

        It was trained beside inner products: a kernel has another scale, and keywords alone have no state.
        """
        memory = self.head.memory
        if not memory or self.mode == "keyword" or not ranks_by_inner_product(self.score):
            return None
        return memory(query_states)

    @property
    def reranker(self) -> Reranker:
        """The second stage over these documents."""
        return Reranker(self._snapshot, stage_of(self._snapshot, self.head), self.rerank_candidates)

    def weighing_of(self, folded: Float[Tensor, "batch heads encoder_dim"]) -> Weighing:
        """Weighting of the candidates of these queries.

        The null slot has a weight only where it was trained: soft hybrid search, at the head's temperature.
        """
        soft = (self.mode, self.pooling, self._temperature) == ("hybrid", "soft", None)
        slot = soft and ranks_by_inner_product(self.score)
        return Weighing(self.head, self.head.mixture_of(folded), self.temperature, self.pooling, slot)

    def _stages(
        self,
        texts: Sequence[str] | None,
        further: Int64[np.ndarray, "batch further"] | None,
        embed: EmbedRows | None = None,
    ) -> tuple[SearchLegs, Scoring]:
        """Return what proposes candidates, and what scores them."""
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
            further=further,
            matches=matches,
            resident=self.resident,
        )
        score = None if self.mode == "keyword" else self.score
        check_bias(self.bias, self.snapshot.positions)
        return legs, Scoring(self.snapshot, self.head, score, embed, matches, self.bias, self.resident)

    def _search(
        self,
        query_states: Float[Tensor, "batch encoder_dim"],
        texts: Sequence[str] | None,
        embed: EmbedRows | None,
        values: Float[Tensor, "positions value_dim"] | None,
        among: Int64[np.ndarray, "batch candidates"] | None = None,
        pooled: bool = True,
        shares: bool = False,
        tokens: Sequence[QueryTokens] | None = None,
    ) -> SearchOutput:
        kind = query_states.device.type
        if embed is not None:
            embed = under_autocast_of_now(embed, kind)
        if query_states.dtype in (torch.bfloat16, torch.float16):
            query_states = query_states.to(self.head.log_temperature.dtype)
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            queries = self.head.queries(query_states)
            recalled, further = self._recalled(query_states), None
            if recalled is not None:
                further = self.memory.best(recalled, self.candidates)
            legs, scoring = self._stages(texts, further, embed)
            for _ in range(self.hops - 1):
                queries = self._hop(queries, legs, scoring, recalled)
            attended = self._attend(
                queries, legs, scoring, recalled, values, among, pooled=pooled, tokens=tokens
            )
            if shares and embed is None and self.over == "candidates":
                whole = self._whole(queries, attended.folded, legs, scoring, recalled)
                attended = attended._replace(covered_mass=whole.share(attended.first_raw, attended.positions))
            return attended

    def _whole(
        self,
        queries: Float[Tensor, "batch heads key_dim"],
        folded: Float[Tensor, "batch heads encoder_dim"],
        legs: SearchLegs,
        scoring: Scoring,
        recalled: Recalled | None,
    ) -> Whole:
        """Every document as a candidate."""
        remembered = None if recalled is None else partial(self.memory.scores, recalled)
        return Whole(scoring, self.weighing_of(folded), legs, queries, folded, remembered)

    def whole(self, query_states: Float[Tensor, "batch encoder_dim"], texts: Sequence[str] | None) -> Whole:
        """Return the attention over every document, to be read block by block; without gradients."""
        with torch.no_grad():
            queries = self.head.queries(query_states)
            recalled = self._recalled(query_states)
            further = None if recalled is None else self.memory.best(recalled, self.candidates)
            legs, scoring = self._stages(texts, further)
            for _ in range(self.hops - 1):
                queries = self._hop(queries, legs, scoring, recalled)
            return self._whole(queries, self.head.fold(queries), legs, scoring, recalled)

    def _hop(
        self,
        queries: Float[Tensor, "batch heads key_dim"],
        legs: SearchLegs,
        scoring: Scoring,
        recalled: Recalled | None,
    ) -> Float[Tensor, "batch heads key_dim"]:
        attended = self._attend(queries, legs, scoring, recalled, least=HOP_CANDIDATES)
        best = attended.positions[:, :HOP_CANDIDATES]
        head_weights = attended.head_weights[..., :HOP_CANDIDATES]
        head_weights = head_weights / head_weights.sum(-1, keepdim=True).clamp_min(1e-30)
        strength = self.head.hop_strength if self.hop_strength is None else self.hop_strength
        if attended.keys is None:
            return refine(queries, head_weights, scoring.keys(best, queries), strength)
        keys = scoring.keys_taken(
            attended.keys[:, :, :HOP_CANDIDATES], best, queries
        )  # each head has its own
        return refine(queries.unsqueeze(2), head_weights.unsqueeze(2), keys, strength).squeeze(2)

    def _attend(
        self,
        queries: Float[Tensor, "batch heads key_dim"],
        legs: SearchLegs,
        scoring: Scoring,
        recalled: Recalled | None,
        values: Float[Tensor, "positions value_dim"] | None = None,
        among: Int64[np.ndarray, "batch candidates"] | None = None,
        *,
        pooled: bool = True,
        least: int = 1,
        tokens: Sequence[QueryTokens] | None = None,
    ) -> SearchOutput:
        head = self.head
        folded = head.fold(queries)
        whole = everything = second = None
        if among is not None:
            positions = among
        elif self.over == "all":
            whole = self._whole(queries, folded, legs, scoring, recalled)
            positions = whole.best(max(self.candidates, least))
        else:
            positions = legs.propose(folded)
        scored = None if pooled else scoring.scores_of_legs(folded, legs, positions)
        if scored is None:
            scored = scoring.scored(queries, folded, positions)
        dense = scored.dense
        by_words = legs.keyword_scores(positions)
        if by_words is None:
            keyword, raw = torch.zeros_like(dense), dense
        else:
            keyword = keyword_part(head.keyword_weight, torch.as_tensor(by_words).to(dense))
            raw = dense + keyword
        remembered = None
        if recalled is not None:
            remembered = self.memory.scores(recalled, positions).to(raw)
            raw = raw + remembered[:, None]
        present, mask = positions != NONE, None
        if not (self._reaches_all and present.all()):
            mask = torch.as_tensor(present).to(raw.device)
        if mask is not None and not self._reaches_all:  # at −inf: outside a kernel's support
            mask = mask & (raw != -torch.inf).any(1)
            positions = np.where(mask.cpu().numpy(), positions, NONE)
        weighing = self.weighing_of(folded)
        if whole is None:
            scores, first = weighing.scores(raw, mask), raw
            if tokens is not None and self.stages == 2:
                words = None if by_words is None else torch.as_tensor(by_words)
                second = self.reranker.terms(tokens, FirstStage(positions, raw, scores, dense, words))
                raw = raw + second.values[:, None]
                scores = weighing.scores(raw, mask)
            weighed = weighing.weighed(raw, mask, first)
        else:
            everything = whole.attended(values)
            weighed = whole.weighed(raw, mask, everything)
            scores = whole.scores(raw, mask, everything)
        order = by_score_then_position(scores, second)
        along = order[:, None].expand_as(dense)
        keys = scored.keys(positions)
        if keys is not None:
            keys = np.take_along_axis(keys, order[:, None].cpu().numpy(), 2)
        if not pooled:
            context = folded.new_empty(len(folded), 0)
        elif everything is not None and everything.context is not None:
            context = everything.context if values is not None else head.values(everything.context)
            if weighed.nothing is not None:
                context = context * (1 - weighed.nothing)[:, None]
        elif values is not None:
            rows = rows_at(values, positions).to(weighed.mixed)
            context = pool(weighed.mixed.unsqueeze(1), rows).squeeze(1)
        else:
            # W_V is linear: Σ w (W_V e) = W_V (Σ w e), one projection a query rather than one a candidate.
            context = head.values(scored.pooled(weighed))
        return SearchOutput(
            context=context,
            weights=weighed.mixed.gather(1, order),
            positions=positions[np.arange(len(positions))[:, None], order.cpu().numpy()],
            scores=scores.gather(1, order),
            dense=dense.gather(2, along),
            keyword=keyword if by_words is None else keyword.gather(2, along),
            head_weights=weighed.by_head.gather(2, along),
            folded=folded,
            memory=None if remembered is None else remembered.gather(1, order),
            recalled=recalled,
            keys=keys,
            null_weight=weighed.nothing,
            output=None if not pooled or values is not None or head.output is None else head.output(context),
            dense_of_all=legs.dense_of_all,
            keyword_of_all=legs.keyword_of_all,
            documents=everything.documents if everything is not None else (positions != NONE).sum(1),
            covered_mass=None if everything is None else torch.ones_like(scores[:, :1]).squeeze(1),
            second=None if second is None else second.values.gather(1, order),
            near_evidence=None if second is None else second.evidence,
            reranked=None if second is None or second.reranked is None else second.reranked.gather(1, order),
        )

    @property
    def _reaches_all(self) -> bool:
        """True if every document has a finite score."""
        return self.mode == "keyword" or ranks_by_inner_product(self.score)

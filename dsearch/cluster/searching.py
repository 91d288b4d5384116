"""`ShardedSearch`: what a collection answers when its documents lie in shards.

    query state → f_h → fold → every shard proposes → the best of all → logits, softmax, ranking
                                                    → (max, sum, context) of every shard → hop, context
                                                    → the documents of the hits from their shards

One answer is of one release and one model from beginning to end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dsearch.attention import entropy, refine
from dsearch.attention.head import Head
from dsearch.cluster.errors import ShardsLost
from dsearch.cluster.merging import Candidates, merged, pooled, poolings, ranked
from dsearch.cluster.questions import Pooled, Proposal, Question
from dsearch.cluster.release import Release
from dsearch.cluster.showing import hits_of
from dsearch.engine.answers import Page, mass_of
from dsearch.engine.layer import HOP_CANDIDATES, SearchOutput
from dsearch.engine.options import SearchChoices
from dsearch.engine.paging import Place
from dsearch.engine.searching import COVERAGE_DOCUMENTS, MAX_DETAILED
from dsearch.errors import Conflict, Gone, InvalidRequest, ShardsMissing
from dsearch.index import ParsedQuery, Tokenizer, parse_query
from dsearch.store import parse_filter
from dsearch.store.filters import Filter
from dsearch.types import AttentionSummary, Mode, SearchResult, Stamp

States = Callable[[Sequence[str], Mode, str], Tensor]


class Shards(Protocol):
    """The shards of one release, wherever they are."""

    def ask(self, method: str, asked: Mapping[int, Any]) -> dict[int, Any]:
        """Call a method of some shards at once, each with its argument; their answers.

        Raises:
            ShardsLost: some of them do not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Attention:
    """What queries attend to, with the values that documents' embeddings are.

    Attributes:
        context: Σ_d weight(q, d) W_V e_d.
        found: weights, scores and positions.
        candidates: the same by shard.
        mass: the share of the exact softmax that the candidates hold; None where it was not asked for.
    """

    context: Float[Tensor, "batch value_dim"]
    found: SearchOutput
    candidates: Candidates
    mass: Float[Tensor, " batch"] | None


class _Restrictions(NamedTuple):
    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    wordless: bool = False


class _Found(NamedTuple):
    output: SearchOutput
    candidates: Candidates
    mass: Tensor | None


class ShardedSearch:
    """Searches of one release.

    Args:
        release: what is searched.
        shards: its shards.
        head: gives the head of a model.
        states: gives the embeddings of queries by the encoder of a model.
    """

    def __init__(self, release: Release, shards: Shards, head: Callable[[str], Head], states: States):
        self.release = release
        self._shards = shards
        self._head = head
        self._states = states
        settings = release.tokenizer
        self._tokenizer = None if settings is None else Tokenizer.from_settings(settings, rebuild=True)

    def search(self, queries: Sequence[str], model: str, chosen: SearchChoices) -> list[SearchResult]:
        """The answers to `queries`, all from this release and one model; as `engine.searching.search`.

        Args:
            queries: the texts.
            model: the version that answers where neither options nor cursor name one.
            chosen: the options.

        Raises:
            InvalidRequest, InvalidCursor.
            Gone, Conflict: the cursor is of another state.
            ShardsMissing: a shard does not answer, and `partial` was not asked for.
        """
        started = time.perf_counter()
        _check(queries, chosen)
        tree = None if chosen.filter is None else parse_filter(chosen.filter)
        places = [
            Place.of(
                chosen.cursor,
                limit=chosen.limit,
                offset=chosen.offset,
                question=(query, chosen.ranking(tree)),
            )
            for query in queries
        ]
        if not places:
            return []
        stamp = self._stamp(places[0].pinned, chosen.model or model)
        lost: frozenset[int] = frozenset()
        while True:
            try:
                results = self._answers(queries, places, stamp, chosen, tree, lost)
                break
            except ShardsLost as error:
                lost |= error.numbers
                if not chosen.partial or len(lost) == len(self.release.shards):
                    raise self.missing(lost) from error
        took_ms, share = (time.perf_counter() - started) * 1000, self.share_of(lost)
        return [replace(result, took_ms=took_ms, missing=share) for result in results]

    def attend(
        self,
        states: Float[Tensor, "batch encoder_dim"],
        texts: list[str] | None,
        model: str,
        *,
        mode: Mode,
        candidates: int,
        hops: int | None = None,
        hop_strength: float | None = None,
        filter: Filter | None = None,
        coverage: bool = False,
    ) -> Attention:
        """Attention of query states over the documents; see `SearchLayer`.

        Raises:
            ShardsLost: a shard does not answer.
        """
        head = self._head(model)
        with torch.inference_mode():
            question = _Asking(texts, mode, candidates, filter, _Restrictions(), coverage)
            found = self._found(states, head, question, frozenset(), hops, hop_strength)
            parts = self._pool(found, head, found.candidates.positions.shape[1])
            context = pooled(parts, found.output.folded)
            mixed = (head.mixture[:, None] * head.values(context)).sum(1)
        return Attention(mixed, found.output, found.candidates, found.mass)

    def share_of(self, lost: frozenset[int]) -> float:
        """The share of the documents that lie in some of the shards."""
        total = self.release.documents
        return sum(self.release.shards[number].documents for number in lost) / total if total else 0.0

    def missing(self, lost: frozenset[int]) -> ShardsMissing:
        """The error that names them."""
        return ShardsMissing(
            f"{len(lost)} of {len(self.release.shards)} shards with {self.share_of(lost):.1%} of the "
            "documents do not answer; they are being restarted: try again in a moment, "
            "or ask with partial=true"
        )

    # ---- one batch

    def _stamp(self, pinned: Stamp | None, model: str) -> Stamp:
        live = Stamp(self.release.generation, model, self.release.sequence)
        if pinned is None or (pinned.generation, pinned.sequence) == (live.generation, live.sequence):
            return live if pinned is None else pinned
        named = f"generation {pinned.generation}, sequence {pinned.sequence}"
        at = f"generation {live.generation}, sequence {live.sequence}"
        if pinned.generation > live.generation or pinned.sequence > live.sequence:
            raise Conflict(f"{named}: the cluster has {at}; use the cursor of one of its answers")
        raise Gone(f"{named} is gone; the cluster is at {at}: ask again, without the cursor")

    def _answers(
        self,
        queries: Sequence[str],
        places: Sequence[Place],
        stamp: Stamp,
        chosen: SearchChoices,
        tree: Filter | None,
        lost: frozenset[int],
    ) -> list[SearchResult]:
        head = self._head(stamp.model)
        parsed = [parse_query(query) if chosen.operators else ParsedQuery(query) for query in queries]
        groups: dict[_Restrictions, list[int]] = {}
        for number, query in enumerate(parsed):
            groups.setdefault(self._restrictions(query, chosen.mode), []).append(number)
        states = torch.zeros(len(parsed), self.release.dimension)
        worded = [number for key, numbers in groups.items() if not key.wordless for number in numbers]
        if worded:
            texts = [parsed[number].text for number in worded]
            states[worded] = self._states(texts, chosen.mode, stamp.model)
        coverage = chosen.coverage
        if coverage is None:
            coverage = self.release.documents <= COVERAGE_DOCUMENTS
        page = Page(chosen.limit, places[0].offset, chosen.score_threshold, chosen.weight_threshold)
        answers: dict[int, SearchResult] = {}
        with torch.inference_mode():
            for restrictions, numbers in groups.items():
                mode: Mode = "dense" if restrictions.wordless else chosen.mode
                texts = None if restrictions.wordless else [parsed[number].text for number in numbers]
                asking = _Asking(texts, mode, places[0].candidates, tree, restrictions, coverage)
                found = self._found(states[numbers], head, asking, lost, chosen.hops, chosen.hop_strength)
                reached = page.reached(found.output).tolist()
                hits = hits_of(
                    found.output,
                    found.candidates,
                    self._shards,
                    head,
                    texts if mode != "dense" else None,
                    page,
                    shown_words=texts,
                    explain=chosen.explain,
                    highlight=chosen.highlight,
                )
                summaries = _summaries(found)
                for at, number in enumerate(numbers):
                    more = reached[at] > page.offset + page.limit
                    answers[number] = SearchResult(
                        query=queries[number],
                        hits=hits[at],
                        stamp=stamp,
                        attention=summaries[at],
                        took_ms=math.nan,
                        next_cursor=places[number].after(page.limit, stamp) if more else None,
                    )
        return [answers[number] for number in range(len(queries))]

    def _restrictions(self, query: ParsedQuery, mode: Mode) -> _Restrictions:
        if not query.constrained:
            return _Restrictions()
        words = bool(query.text.strip())
        if words and mode == "keyword" and self._tokenizer is not None:
            words = bool(next(self._tokenizer.terms([query.text])))
        return _Restrictions(query.required, query.excluded, not words)

    def _found(
        self,
        states: Float[Tensor, "batch encoder_dim"],
        head: Head,
        asking: _Asking,
        lost: frozenset[int],
        hops: int | None,
        hop_strength: float | None,
    ) -> _Found:
        """Attention after the last hop."""
        strength = head.hop_strength if hop_strength is None else hop_strength
        if hops is None:
            hops = 2 if float(strength) else 1
        if hops < 1:
            raise InvalidRequest(f"hops={hops}; use an integer of at least 1")
        queries = head.queries(states)
        for _ in range(hops - 1):
            found = self._proposed(queries, head, replace(asking, coverage=False), lost)
            parts = self._pool(found, head, HOP_CANDIDATES)
            keys = head.keys(
                pooled(parts, found.output.folded)
            )  # linear: the key of a mean is the keys' mean
            once = torch.ones(*queries.shape[:2], 1, 1)
            queries = refine(queries.unsqueeze(2), once, keys.unsqueeze(2), strength).squeeze(2)
        return self._proposed(queries, head, asking, lost)

    def _proposed(
        self,
        queries: Float[Tensor, "batch heads key_dim"],
        head: Head,
        asking: _Asking,
        lost: frozenset[int],
    ) -> _Found:
        folded = head.fold(queries)
        question = asking.question(folded, head)
        numbers = [number for number in range(len(self.release.shards)) if number not in lost]
        answers = cast("dict[int, Proposal]", self._shards.ask("propose", dict.fromkeys(numbers, question)))
        offsets = {number: self.release.shards[number].offset for number in numbers}
        candidates, documents = merged(answers, offsets, question)
        output, by_weight = ranked(candidates, folded, head, question)
        return _Found(output, by_weight, self._mass(output, answers, documents, head, asking))

    def _mass(
        self,
        found: SearchOutput,
        answers: Mapping[int, Proposal],
        documents: int,
        head: Head,
        asking: _Asking,
    ) -> Float[Tensor, " batch"] | None:
        if not asking.coverage:
            return None
        if found.positions.shape[1] and (found.positions >= 0).sum(1).min() == documents:
            return torch.ones(len(found.positions))
        parts = [torch.tensor(answer.partition) for answer in answers.values()]
        whole = torch.stack(parts).logsumexp(0)
        return mass_of(found, whole, temperature=head.temperature, mixture=head.mixture)

    def _pool(self, found: _Found, head: Head, most: int) -> list[Pooled]:
        asked = poolings(found.output, found.candidates, head, most)
        return list(self._shards.ask("pool", asked).values()) if asked else []


@dataclass(frozen=True, slots=True)
class _Asking:
    """A question before its queries are projected."""

    texts: list[str] | None
    mode: Mode
    candidates: int
    filter: Filter | None
    restrictions: _Restrictions
    coverage: bool

    def question(self, folded: Float[Tensor, "batch heads encoder_dim"], head: Head) -> Question:
        return Question(
            folded=np.ascontiguousarray(folded.numpy(), np.float32),
            texts=self.texts,
            mode=self.mode,
            candidates=self.candidates,
            filter=self.filter,
            required=self.restrictions.required,
            excluded=self.restrictions.excluded,
            partition=self.coverage,
            keyword_weight=head.keyword_weight.detach().numpy(),
            temperature=float(head.temperature),
            weighting=head.keyword_weighting,
        )


def _summaries(found: _Found) -> list[AttentionSummary]:
    spread = entropy(found.output.weights).tolist()
    counts = (found.output.positions >= 0).sum(axis=1).tolist()
    mass = [None] * len(counts) if found.mass is None else found.mass.tolist()
    return [
        AttentionSummary(candidates=count, entropy=abs(nats), covered_mass=share)
        for count, nats, share in zip(counts, spread, mass, strict=True)
    ]


def _check(queries: Sequence[str], chosen: SearchChoices) -> None:
    if chosen.mode not in ("hybrid", "dense", "keyword"):
        raise InvalidRequest(f"mode={chosen.mode!r}; use hybrid, dense or keyword")
    blank = next((i for i, query in enumerate(queries) if not query.strip()), None)
    if blank is not None:
        raise InvalidRequest(f"query {blank} is empty; give at least one word")
    if chosen.cursor is not None and len(queries) != 1:
        raise InvalidRequest(f"cursor and {len(queries)} queries; it goes on with one: ask that alone")
    if (chosen.explain or chosen.highlight) and len(queries) * chosen.limit > MAX_DETAILED:
        raise InvalidRequest(
            f"explain or highlight of {len(queries)} times {chosen.limit} hits; "
            f"use at most {MAX_DETAILED} in all"
        )

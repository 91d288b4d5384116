"""`ShardedSearch`: search of a collection whose documents lie in shards.

    texts → query states → attention over all shards (attention.py) → hits, with documents from the shards

An answer uses one release and one model from beginning to end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from dsearch.attention.retrieval.head import Head
from dsearch.cluster.messages import (
    GatherRequest,
    HitPreview,
    HitRequest,
    MeaningRequest,
    QueryText,
    ShardHit,
    ShardsLost,
)
from dsearch.cluster.release import Release
from dsearch.cluster.search.attention import ShardedAttention, ShardedOutput, ShardQuery, Shards
from dsearch.cluster.search.second_stage import RerankQuery, may_rerank
from dsearch.encoder import TextTokens
from dsearch.engine import Collection
from dsearch.engine.indexing.own_vectors import Vectors
from dsearch.engine.models.confidence import confidences
from dsearch.engine.ranking.explain import explained
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.search.arrangement import (
    Duplicates,
    Positions,
    arranged,
    shaped_by,
    sharing_attention,
)
from dsearch.engine.search.hits import HitPage, PageRequest, results_of, summaries_of
from dsearch.engine.search.queries import (
    QueryGroup,
    checked_questions,
    group_queries,
    states_of,
    token_encoder_of,
)
from dsearch.errors import Conflict, Gone, InvalidRequest, ShardsMissing, amount
from dsearch.evaluation.confidence import Calibration
from dsearch.index import ParsedQuery, Tokenizer
from dsearch.search_options import SearchOptions
from dsearch.store import filter_of
from dsearch.store.filters import Filter, parse_field, value_at
from dsearch.types import Document, Hit, Mode, SearchResult, Stamp


class EncodedQueries(NamedTuple):
    """Queries as numbers.

    Attributes:
        states: embeddings by the encoder of a version; zeros where only words count.
        tokens: of each query; None where nobody asked for them.
    """

    states: Float[Tensor, "batch encoder_dim"]
    tokens: Sequence[TextTokens] | None


class QueryEncoder(Protocol):
    """Encodes the queries of one collection."""

    def __call__(self, texts: Sequence[str], mode: Mode, model: str, tokens: bool) -> EncodedQueries:
        """Return embeddings by the encoder of a version and, if `tokens`, token states."""
        ...


def encode_queries(
    collection: Collection, texts: Sequence[str], mode: Mode, model: str, tokens: bool
) -> EncodedQueries:
    """Encode in this process; see `QueryEncoder`.

    Raises:
        EncoderUnavailable: the encoder gives no token states, and they are wanted.
        ModelNotFound.
    """
    of_tokens = token_encoder_of(collection, model) if tokens else None
    states = collection.query_states(texts, mode, model, of_tokens)
    if of_tokens is None:
        return EncodedQueries(states, None)
    return EncodedQueries(states, collection.query_token_cache.of(of_tokens, texts))


_FEW_SHARDS = 8


@dataclass(frozen=True, slots=True)
class _Place:
    """A hit: the number of its query and its column."""

    query: int
    column: int


@dataclass(frozen=True, slots=True)
class HitFields:
    """Fields that hits carry beside their documents.

    Attributes:
        words: words of each query to explain or highlight; None without.
        explain: whether hits carry the contribution of each word.
        highlight: whether hits carry the fragments that contain the words.
        meaning: queries for fragments by meaning instead; None without.
    """

    words: Sequence[str] | None
    explain: bool
    highlight: bool
    meaning: list[QueryText] | None = None

    @classmethod
    def of(
        cls,
        texts: Sequence[str] | None,
        mode: Mode,
        *,
        explain: bool,
        highlight: bool,
        meaning: list[QueryText] | None = None,
    ) -> HitFields:
        """Return the fields for queries with these words; a dense search has no words to explain."""
        scored = None if mode == "dense" else texts
        return cls(texts if highlight else scored, explain and scored is not None, highlight, meaning)


def preview(page: HitPage, fields: HitFields, shards: int) -> HitPreview | None:
    """Decide how many documents each shard sends with its proposals; None if a second round is cheaper.

    A message costs a shard more than ten documents. With few shards, each sends twice its share of the page
    plus two. With four shards and randomly distributed documents (binomial) that is too few for two answers
    in a thousand, more if documents of a topic lie together; the missing ones are requested separately.
    With many shards most of these documents would be unused.

    Args:
        page: requested range of hits; shards know their own hits only for the first page.
        fields: fields of the hits.
        shards: number of shards.
    """
    if page.offset or shards > _FEW_SHARDS or fields.meaning is not None:
        return None
    share = -(-2 * page.limit // max(shards, 1)) + 2
    words = None if fields.words is None else fields.words[0]
    return HitPreview(min(page.limit, share), words, fields.explain, fields.highlight)


def hits_of(
    answer: ShardedOutput,
    release: Release,
    shards: Shards,
    head: Head,
    page: HitPage,
    fields: HitFields,
    *,
    explain: bool,
    duplicates: Duplicates | None = None,
) -> list[list[Hit]]:
    """Build the hits of each query, ranks from 1, with one request per shard for documents still missing.

    Args:
        answer: attention over the candidates.
        release: release that was searched.
        shards: its shards.
        head: head of the attention.
        page: requested range of hits.
        fields: fields of the hits.
        explain: whether hits carry the parts of their scores.
        duplicates: number of candidates that each hit stands for beside itself.
    """
    output = answer.output
    owners = release.owners(output.positions)
    stops = np.minimum(page.reached(output), page.offset + page.limit).tolist()
    places = [
        _Place(query, column) for query, stop in enumerate(stops) for column in range(page.offset, stop)
    ]
    documents: dict[_Place, ShardHit] = {}
    by_shard: dict[int, list[_Place]] = {}
    for place in places:
        entry = answer.hits.get(int(output.positions[place.query, place.column]))
        if entry is None:
            by_shard.setdefault(int(owners[place.query, place.column]), []).append(place)
        else:
            documents[place] = entry
    taken = _keys(output, head)
    requests = {
        shard: HitRequest(
            positions=[int(output.positions[place.query, place.column]) for place in here],
            keys=None if taken is None else [int(taken[place.query, place.column]) for place in here],
            queries=None if fields.words is None else [fields.words[place.query] for place in here],
            explain=fields.explain,
            highlight=fields.highlight,
            weighting=head.keyword_weighting,
            meaning=None
            if fields.meaning is None
            else MeaningRequest(fields.meaning, [place.query for place in here]),
        )
        for shard, here in by_shard.items()
    }
    answers = cast("Mapping[int, list[ShardHit]]", shards.ask("show", requests) if requests else {})
    for shard, here in by_shard.items():
        documents.update(zip(here, answers[shard], strict=True))
    why = explained(output, head, head.temperature) if explain else None
    weights, scores = output.weights.numpy(), output.scores.numpy()
    hits: list[list[Hit]] = [[] for _ in stops]
    for place in places:
        entry, query, column = documents[place], place.query, place.column
        hits[query].append(
            Hit(
                rank=column + 1,
                id=entry.document.id,
                weight=float(weights[query, column]),
                score=float(scores[query, column]),
                title=entry.document.title,
                text=entry.document.text,
                metadata=entry.document.metadata,
                explain=None if why is None else why(query, column, entry.terms),
                highlights=entry.highlights,
                passage=entry.passage,
                duplicates=0 if duplicates is None else int(duplicates[query][column]),
            )
        )
    return hits


def _keys(output: SearchOutput, head: Head) -> Int64[np.ndarray, "batch candidates"] | None:
    """Key of each candidate, from the head that adds most to its weight; None with one key a document."""
    if output.keys is None:
        return None
    shares = (output.head_weights * head.mixture_of(output.folded).detach()[..., None]).numpy()
    return np.take_along_axis(output.keys, shares.argmax(axis=1)[:, None], 1)[:, 0]


@dataclass(frozen=True, slots=True)
class DocumentsOfShards:
    """The documents of a ranking, asked of their shards; see `CandidateDocuments`.

    Attributes:
        release: release that was searched.
        shards: its shards.
        known_names: names that came with the candidates, by position.
    """

    release: Release
    shards: Shards
    known_names: Mapping[int, int]

    def documents(self, positions: Positions) -> list[Document]:
        """See `CandidateDocuments`."""
        found: dict[int, Document] = {}
        requests = {
            shard: HitRequest(here.tolist(), None, None, explain=False, highlight=False)
            for shard, here in self._by_shard(positions)
        }
        answers = cast("Mapping[int, list[ShardHit]]", self.shards.ask("show", requests) if requests else {})
        for shard, answer in answers.items():
            of_hits = (entry.document for entry in answer)
            found.update(zip(requests[shard].positions, of_hits, strict=True))
        return [found[position] for position in positions.tolist()]

    def names(self, positions: Positions) -> list[int]:
        """See `CandidateDocuments`."""
        return [self.known_names[position] for position in positions.tolist()]

    def values(self, positions: Positions, field: str) -> list[Any]:
        """See `CandidateDocuments`."""
        keys = parse_field(field, "group_by")
        return [value_at(document.metadata, keys) for document in self.documents(positions)]

    def embeddings(self, positions: Positions) -> Float[np.ndarray, "some encoder_dim"]:
        """See `CandidateDocuments`."""
        found = np.zeros((len(positions), self.release.dimension), np.float32)
        requests = {shard: GatherRequest(here[:, None], None) for shard, here in self._by_shard(positions)}
        owners = self.release.owners(positions)
        for shard, answer in self.shards.ask("gather", requests).items() if requests else ():
            found[owners == shard] = answer.embeddings[:, 0]
        return found

    def _by_shard(self, positions: Positions) -> Iterator[tuple[int, Positions]]:
        owners = self.release.owners(positions)
        for shard in np.unique(owners).tolist():
            yield shard, positions[owners == shard]


@dataclass(frozen=True, slots=True)
class ClusterAttention:
    """Attention of queries, with the documents' embeddings as values.

    Attributes:
        context: Σ_d weight(q, d) W_V e_d.
        output: weights, scores, positions, covered mass.
    """

    context: Float[Tensor, "batch value_dim"]
    output: ShardedOutput


class ShardedSearch:
    """Searches of one release.

    Args:
        release: release to search.
        shards: its shards.
        head: returns the head of a model.
        encode: encodes queries with the encoder of a model.
        calibration_of: returns the calibration of a model's first hits; None if it has none.
    """

    def __init__(
        self,
        release: Release,
        shards: Shards,
        head: Callable[[str], Head],
        encode: QueryEncoder,
        calibration_of: Callable[[str], Calibration | None] = lambda _: None,
    ):
        self.release = release
        self._shards = shards
        self._attention = ShardedAttention(release, shards)
        self._head = head
        self._encode = encode
        self._calibration_of = calibration_of
        settings = release.tokenizer
        self._tokenizer = None if settings is None else Tokenizer.from_settings(settings, rebuild=True)

    def search(
        self,
        queries: Sequence[str],
        model: str,
        chosen: SearchOptions,
        vectors: Vectors | None = None,
    ) -> list[SearchResult]:
        """Answer queries with this release and one model, as `dsearch.engine.search.search`.

        Args:
            queries: texts; with vectors they may be "".
            model: default version, if neither options nor cursor name one.
            chosen: options of the search.
            vectors: in place of the embeddings of the texts.

        Raises:
            DimensionMismatch, InvalidRequest, InvalidCursor.
            Gone, Conflict: the cursor names another state.
            ShardsMissing: a shard does not answer, and `partial` is False.
        """
        started = time.perf_counter()
        if chosen.mode not in ("hybrid", "dense", "keyword"):
            raise InvalidRequest(f"mode={chosen.mode!r}; use hybrid, dense or keyword")
        own, questions = checked_questions(queries, chosen, vectors, self.release.dimension)
        states = None if own is None else torch.as_tensor(own)
        if chosen.typos:
            raise InvalidRequest("typos over shards, whose words are not all in one place; leave it out")
        tree = filter_of(chosen.filter)
        places = PageRequest.of_batch(self.release.collection, questions, chosen, tree)
        if not places:
            return []
        stamp = self._stamp(places[0].pinned, chosen.model or model)
        lost: frozenset[int] = frozenset()
        while True:
            try:
                results = self._answers(queries, places, stamp, chosen, tree, lost, states)
                break
            except ShardsLost as error:
                lost |= error.numbers
                if not chosen.partial or len(lost) == len(self.release.shards):
                    raise self._missing(lost) from error
        took_ms, share = (time.perf_counter() - started) * 1000, self._share_of(lost)
        return [replace(result, took_ms=took_ms, missing=share) for result in results]

    def attend(
        self,
        states: Float[Tensor, "batch encoder_dim"],
        texts: list[str] | None,
        model: str,
        *,
        mode: Mode,
        candidates: int,
        coverage: bool = False,
    ) -> ClusterAttention:
        """Compute attention of query states over the documents; see `SearchLayer`.

        Raises:
            ShardsLost: a shard does not answer.
        """
        head = self._head(model)
        with torch.inference_mode():
            query = ShardQuery(texts, mode, candidates, coverage=coverage)
            answer = self._attention.attend(states, head, query)
            return ClusterAttention(self._attention.context(answer, head), answer)

    def _share_of(self, lost: frozenset[int]) -> float:
        """Share of the documents that lie in these shards."""
        total = self.release.documents
        return sum(self.release.shards[number].documents for number in lost) / total if total else 0.0

    def _missing(self, lost: frozenset[int]) -> ShardsMissing:
        return ShardsMissing(
            f"{len(lost)} of {amount(len(self.release.shards), 'shard')} with {self._share_of(lost):.1%} "
            "of the "
            "documents do not answer; they are being restarted: try again in a moment, "
            "or ask with partial=true"
        )

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
        places: Sequence[PageRequest],
        stamp: Stamp,
        chosen: SearchOptions,
        tree: Filter | None,
        lost: frozenset[int],
        vectors: Float[Tensor, "batch encoder_dim"] | None,
    ) -> list[SearchResult]:
        if vectors is not None and not any(map(str.strip, queries)):
            groups = [QueryGroup([*range(len(queries))], ParsedQuery(""), "dense", None)]
        else:
            groups = group_queries(queries, chosen.mode, self._tokenizer, operators=chosen.operators)
        head = self._head(stamp.model)
        by_meaning = chosen.highlight and chosen.highlight_by == "meaning"
        reranked = [vectors is None and may_rerank(chosen.stages, head, group.mode) for group in groups]
        tokens: dict[str, TextTokens] = {}

        def encode(texts: Sequence[str], mode: Mode) -> Float[Tensor, "texts encoder_dim"]:
            encoded = self._encode(texts, mode, stamp.model, by_meaning or any(reranked))
            tokens.update(zip(texts, encoded.tokens or (), strict=encoded.tokens is not None))
            return encoded.states

        states = vectors
        if states is None:
            by_mode = partial(encode, mode=chosen.mode)
            states = torch.as_tensor(states_of(groups, by_mode, self.release.dimension))
        elif by_meaning:
            encode([text for group in groups for text in group.texts or ()], "keyword")
        answers: dict[int, SearchResult] = {}
        with torch.inference_mode():
            for group, again in zip(groups, reranked, strict=True):
                encoded = None
                if group.texts is not None and (again or by_meaning):
                    encoded = [QueryText(text, *tokens[text]) for text in group.texts]
                query = ShardQuery(
                    texts=group.texts,
                    mode=group.mode,
                    candidates=places[0].candidates,
                    depth=places[0].depth,
                    filter=tree,
                    required=group.phrases.required,
                    excluded=group.phrases.excluded,
                    coverage=chosen.covers(self.release.documents),
                    rerank=RerankQuery(
                        chosen.stages if vectors is None else 1,
                        chosen.rerank_candidates,
                        encoded if again else None,
                    ),
                    collapse=chosen.collapse,
                )
                named = [(queries[number], places[number]) for number in group.numbers]
                meaning = encoded if by_meaning else None
                results = self._answered(named, states[group.numbers], query, stamp, chosen, lost, meaning)
                answers.update(zip(group.numbers, results, strict=True))
        return [answers[number] for number in range(len(queries))]

    def _answered(
        self,
        named: Sequence[tuple[str, PageRequest]],
        states: Float[Tensor, "batch encoder_dim"],
        query: ShardQuery,
        stamp: Stamp,
        chosen: SearchOptions,
        lost: frozenset[int],
        meaning: list[QueryText] | None,
    ) -> list[SearchResult]:
        """Answer queries of one group; `named` has each text with its page request."""
        head, offset = self._head(stamp.model), named[0][1].offset
        page = HitPage(chosen.limit, offset, chosen.score_threshold, chosen.weight_threshold)
        fields = HitFields.of(
            query.texts, query.mode, explain=chosen.explain, highlight=chosen.highlight, meaning=meaning
        )
        shards = len(self.release.shards) - len(lost)
        rearranges = chosen.sort is not None or chosen.group_by is not None or bool(chosen.diversity)
        query = replace(query, preview=None if rearranges else preview(page, fields, shards))
        answer = self._attention.attend(
            states, head, query, lost=lost, hops=chosen.hops, hop_strength=chosen.hop_strength
        )
        attention = sharing_attention(answer.output)
        summaries = summaries_of(attention, answer.mass)
        estimated = None
        if (calibration := self._calibration(query, stamp, chosen)) is not None:
            estimated = confidences(attention, head, head.temperature, calibration)
        documents = DocumentsOfShards(self.release, self._shards, answer.names or {})
        output, duplicates = arranged(answer.output, documents, page.reached(answer.output), chosen)
        answer = replace(answer, output=output)
        hits = hits_of(
            answer,
            self.release,
            self._shards,
            head,
            page,
            fields,
            explain=chosen.explain,
            duplicates=duplicates,
        )
        shape = shaped_by(chosen.fields)
        hits = [[shape(hit) for hit in of_query] for of_query in hits]
        results = results_of(named, page.reached(output), hits, summaries, page, stamp)
        if estimated is None:
            return results
        return [replace(result, confidence=of) for result, of in zip(results, estimated, strict=True)]

    def _calibration(self, query: ShardQuery, stamp: Stamp, chosen: SearchOptions) -> Calibration | None:
        """Calibration of the first hits' confidence; None where the first hit is not the likeliest."""
        if query.texts is None or chosen.mode != "hybrid" or chosen.sort is not None:
            return None
        return self._calibration_of(stamp.model)

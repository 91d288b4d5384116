"""Build hits from attention over candidates; the shards supply the documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.cluster.search.attention import ShardedOutput, Shards
from dsearch.cluster.search.merge import Candidates
from dsearch.cluster.wire.messages import HitPreview, HitRequest, MeaningRequest, QueryText, ShardHit
from dsearch.engine.ranking.explain import explained
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.search.arrangement import Duplicates, order_by
from dsearch.engine.search.hits import HitPage
from dsearch.types import Document, Hit, Mode

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
        shards: shards of the release.
        head: head of the attention.
        page: requested range of hits.
        fields: fields of the hits.
        explain: whether hits carry the parts of their scores.
        duplicates: number of candidates that each hit stands for beside itself.
    """
    output, candidates = answer.output, answer.candidates
    stops = np.minimum(page.reached(output), page.offset + page.limit).tolist()
    places = [
        _Place(query, column) for query, stop in enumerate(stops) for column in range(page.offset, stop)
    ]
    documents: dict[_Place, ShardHit] = {}
    by_shard: dict[int, list[_Place]] = {}
    for place in places:
        entry = answer.hits.get(int(candidates.positions[place.query, place.column]))
        if entry is None:
            by_shard.setdefault(int(candidates.shards[place.query, place.column]), []).append(place)
        else:
            documents[place] = entry
    taken = _keys(output, candidates, head)
    requests = {
        shard: HitRequest(
            positions=[int(candidates.positions[place.query, place.column]) for place in here],
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


def by_field(hits: Sequence[Hit], sort: str, page: HitPage) -> list[Hit]:
    """The page of all hits of a query in the order of a metadata field, as one machine shows it.

    Raises:
        InvalidRequest: see `order_by`.
    """
    documents = [Document(hit.id, hit.text, hit.title, hit.metadata) for hit in hits]
    places = order_by(documents, sort)[page.offset : page.offset + page.limit]
    return [replace(hits[place], rank=page.offset + rank) for rank, place in enumerate(places, start=1)]


def _keys(output: SearchOutput, candidates: Candidates, head: Head) -> np.ndarray | None:
    """Key of each candidate, from the head that adds most to its weight; None with one key a document."""
    if output.keys is None:
        return None
    shares = (output.head_weights * head.mixture_of(output.folded).detach()[..., None]).numpy()
    heads = torch.as_tensor(shares.argmax(axis=1)).numpy()
    return np.take_along_axis(candidates.keys, heads[:, None], 1)[:, 0]

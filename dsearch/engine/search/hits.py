"""Build hits with ids and texts from attention over positions, and highlight the terms of the query.

A title is highlighted whole, of a text some windows (fragments.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int64

from dsearch.attention.arrays import Array, numbers_of
from dsearch.attention.softmax import entropy
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.ranking.ranker import Ranker
from dsearch.engine.search.highlights.fragments import SCANNED_CHARACTERS, fragments
from dsearch.engine.search.pagination import PageRequest
from dsearch.engine.snapshot.snapshot import NONE
from dsearch.engine.state.caches import KeptDocuments, owned
from dsearch.index import KeywordIndex
from dsearch.types import AttentionSummary, Document, Highlight, Hit, Passage, SearchResult, Stamp

if TYPE_CHECKING:
    from dsearch.engine.ranking.explain import Explain
    from dsearch.engine.search.highlights.meaning import ShowMeaning

ShowPieces = Callable[[int, Document], list[Highlight]]


@dataclass(frozen=True, slots=True)
class HitPage:
    """Range of hits to return from each ranking: those from `offset` that reach both thresholds."""

    limit: int
    offset: int
    score_threshold: float | None = None
    weight_threshold: float | None = None

    def reached(self, output: SearchOutput) -> Int64[np.ndarray, " batch"]:
        """Count the candidates of each query that reach the thresholds; these are the first ones."""
        reach = output.positions != NONE
        if self.score_threshold is None and self.weight_threshold is None:
            return reach.sum(axis=1)
        if self.score_threshold is not None:
            reach = reach & (numbers_of(output.scores) >= self.score_threshold)
        if self.weight_threshold is not None:
            reach = reach & (numbers_of(output.weights) >= self.weight_threshold)
        return np.logical_and.accumulate(reach, axis=1).sum(axis=1)


def hits_of(
    output: SearchOutput,
    layer: Ranker,
    documents_of: KeptDocuments,
    page: HitPage,
    *,
    explain: Explain | None = None,
    highlight: ShowPieces | None = None,
    meaning: ShowMeaning | None = None,
    duplicates: Sequence[Int64[np.ndarray, " hits"]] | None = None,
) -> list[list[Hit]]:
    """Build the hits of each query, ranks counted from 1; all documents are read in one pass."""
    stops = np.minimum(page.reached(output), page.offset + page.limit).tolist()
    rows = layer.snapshot.rows(output.positions[:, : max(stops, default=0)])
    page_rows = [row[page.offset : stop] for row, stop in zip(rows, stops, strict=True)]
    documents = documents_of.of(np.concatenate([*page_rows, np.empty(0, np.int64)]))
    weights, scores = numbers_of(output.weights), numbers_of(output.scores)
    passage_of = _passages_shown(output, layer, max(stops, default=0))
    hits: list[list[Hit]] = []
    for query, (row, stop) in enumerate(zip(page_rows, stops, strict=True)):
        of_row = zip(
            range(page.offset, stop),
            row.tolist(),
            weights[query, page.offset : stop].tolist(),
            scores[query, page.offset : stop].tolist(),
            strict=True,
        )
        answer: list[Hit] = []
        for column, number, weight, score in of_row:
            document = documents[number]
            pieces = None if highlight is None else highlight(query, document)
            if meaning is not None:
                pieces = meaning(query, number, document)
            answer.append(
                Hit(
                    rank=column + 1,
                    id=document.id,
                    weight=weight,
                    score=score,
                    title=document.title,
                    text=document.text,
                    metadata=owned(document.metadata),
                    explain=None if explain is None else explain(query, column),
                    highlights=pieces,
                    passage=passage_of(query, column, document),
                    duplicates=0 if duplicates is None else int(duplicates[query][column]),
                )
            )
        hits.append(answer)
    return hits


def _passages_shown(
    output: SearchOutput, layer: Ranker, most: int
) -> Callable[[int, int, Document], Passage | None]:
    """The passage that each of the first candidates was taken for; of several heads by that which adds most
    to its weight."""
    passages = layer.snapshot.passages
    keys = layer.keys_of(output, most)
    if keys is None or passages is None:
        return lambda query, column, document: None
    if layer.head.heads == 1:
        heads = np.zeros((len(keys), most), np.int64)
    else:
        mixture = layer.head.mixture_of(output.folded)
        heads = numbers_of(output.head_weights[..., :most] * mixture[..., None]).argmax(axis=1)

    def passage_at(query: int, column: int, document: Document) -> Passage | None:
        span = passages.span_of(int(keys[query, heads[query, column], column]))
        if span is None:
            return None
        ordinal, start, end = span
        return Passage(ordinal, start, end, document.text[start:end])

    return passage_at


def results_of(
    named: Sequence[tuple[str, PageRequest]],
    output: SearchOutput,
    hits: Sequence[list[Hit]],
    summaries: Sequence[AttentionSummary],
    page: HitPage,
    stamp: Stamp,
) -> list[SearchResult]:
    """Build one result per query of a batch, given each query's start in its ranking, and its attention.

    How long they took whoever began knows.
    """
    reached = page.reached(output).tolist()
    return [
        SearchResult(
            query=query,
            hits=page_hits,
            stamp=stamp,
            attention=summary,
            took_ms=math.nan,
            next_cursor=place.after(page.limit, stamp) if more > page.offset + page.limit else None,
        )
        for (query, place), page_hits, summary, more in zip(named, hits, summaries, reached, strict=True)
    ]


def summaries_of(output: SearchOutput, mass: Float[Array, " batch"] | None) -> list[AttentionSummary]:
    """Summarise the attention of each query; `mass` is its share of the exact softmax."""
    covered = None if mass is None else numbers_of(mass)
    spread = numbers_of(entropy(output.weights))
    counts = (output.positions != NONE).sum(axis=1)
    return [
        AttentionSummary(
            candidates=int(counts[query]),
            entropy=abs(float(spread[query])),  # of a one-hot distribution it comes as −0
            covered_mass=None if covered is None else float(covered[query]),
            null_weight=None if output.null_weight is None else float(output.null_weight[query]),
        )
        for query in range(len(counts))
    ]


def highlighter(index: KeywordIndex, texts: Sequence[str] | None) -> ShowPieces:
    """Return a function that highlights a document for a query's number; none without its words."""

    def pieces(query: int, document: Document) -> list[Highlight]:
        if texts is None:
            return []
        words = texts[query]
        highlights: list[Highlight] = []
        if spans := index.highlights(words, document.title):
            highlights.append(Highlight("title", 0, document.title, spans))
        text = document.text[:SCANNED_CHARACTERS]
        return highlights + fragments(text, index.highlights(words, text))

    return pieces

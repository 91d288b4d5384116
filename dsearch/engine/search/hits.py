"""Pages of hits: place in a ranking, ids and texts of its documents, highlighted terms of the query.

A title is highlighted whole, of a text some windows (highlights.py).

A cursor names the place, with the state, model and depth that produced the ranking. A page requested by
cursor continues the ranking of the first page, whatever was written or promoted since: no hit is shown twice
and none is left out. The ranking therefore ends where its documents end. A first page with a larger `limit`
lists more of them, by deeper legs; the candidates, which share the attention, stay the same, and with them
the weight of every hit. If the state no longer exists the answer is an error, never another ranking.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Float, Int64

from dsearch.attention.arrays import Array, entropy, numbers_of
from dsearch.attention_options import CANDIDATES
from dsearch.engine.ranking.output import SearchOutput
from dsearch.engine.ranking.ranker import Ranker
from dsearch.engine.search.highlights import SCANNED_CHARACTERS, fragments
from dsearch.engine.snapshot import NONE
from dsearch.engine.state.caches import DocumentCache, owned
from dsearch.errors import InvalidCursor, InvalidRequest
from dsearch.index import KeywordIndex
from dsearch.search_options import MAX_CURSOR_CHARACTERS, MAX_LIMIT, MAX_OFFSET, SearchOptions
from dsearch.types import AttentionSummary, Document, Highlight, Hit, Passage, SearchResult, Stamp

if TYPE_CHECKING:
    from dsearch.engine.ranking.explain import Explain
    from dsearch.engine.search.highlights import ShowMeaning


_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a ranking.

    Attributes:
        stamp: what the ranking was made from.
        offset: hits before the place.
        depth: how many each leg proposed for it.
        question: a digest of all that the ranking depends on beside these.
    """

    stamp: Stamp
    offset: int
    depth: int
    question: str

    def __str__(self) -> str:
        stamp = self.stamp
        state = f'{stamp.generation},"{stamp.model}",{stamp.sequence}'
        written = f'[{_FORMAT},{state},{self.offset},{self.depth},"{self.question}"]'  # no text of others
        return base64.urlsafe_b64encode(written.encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str, question: str) -> Cursor:
        """Parse a cursor, for a search whose question is `question`.

        Raises:
            InvalidCursor: it did not come from an answer, or from the answer to another question.
        """
        parts = _parts(text) if len(text) <= MAX_CURSOR_CHARACTERS else None
        if parts is None or not _fit(parts):
            raise InvalidCursor(
                f"cursor={text[:80]!r}; use the next_cursor of an answer, or none for the first page"
            )
        _, generation, model, sequence, offset, depth, request_digest = parts
        if request_digest != question:
            raise InvalidCursor(
                "cursor: it belongs to another search; repeat query, filter, mode and all other options of "
                "the first page (limit, explain, highlight and coverage may differ), in the same collection"
            )
        return cls(Stamp(generation, model, sequence), offset, depth, request_digest)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Start of an answer within a ranking.

    Attributes:
        question: digest of everything that decides the ranking, apart from its state.
        offset: number of hits before the start.
        candidates: how many each leg proposes to share the attention.
        depth: how many each leg proposes to be listed; at least as many.
        pinned: state and model of the first page; None for a first page.
    """

    question: str
    offset: int
    candidates: int
    depth: int
    pinned: Stamp | None = None

    @classmethod
    def of(
        cls,
        cursor: str | None,
        *,
        limit: int,
        offset: int,
        question: object,
        candidates: int | None = None,
    ) -> PageRequest:
        """Return the place that a request names, by cursor or by offset.

        Args:
            cursor: `next_cursor` of the page before.
            limit: hits of a page.
            offset: hits before the first page.
            question: all that the ranking depends on beside its state, of which only `repr` counts.
            candidates: how many each leg proposes, to share the attention and to be listed; when None 100
                share it, and as many are listed as the page needs.

        Raises:
            InvalidRequest: limit, offset or candidates out of range, or both cursor and offset.
            InvalidCursor: not a cursor, or one of another question.
        """
        if not 1 <= limit <= MAX_LIMIT:
            raise InvalidRequest(f"limit={limit}; use 1 to {MAX_LIMIT}")
        if not 0 <= offset <= MAX_OFFSET:
            raise InvalidRequest(f"offset={offset}; use 0 to {MAX_OFFSET}")
        if candidates is not None and not 1 <= candidates <= MAX_OFFSET + MAX_LIMIT:
            raise InvalidRequest(f"candidates={candidates}; use 1 to {MAX_OFFSET + MAX_LIMIT}")
        digest = hashlib.sha256(repr(question).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        shared = candidates or CANDIDATES
        if cursor is None:
            return cls(digest, offset, shared, candidates or max(shared, limit + offset))
        if offset:
            raise InvalidRequest(f"cursor and offset={offset}; give one of the two")
        parsed = Cursor.parse(cursor, digest)
        return cls(digest, parsed.offset, shared, max(shared, parsed.depth), parsed.stamp)

    @classmethod
    def of_batch(
        cls, collection: str, queries: Sequence[object], chosen: SearchOptions, filter: object
    ) -> list[PageRequest]:
        """Return the place that the options of a search name in the ranking of each query.

        Args:
            collection: its name; an alias may be moved between two pages.
            queries: the texts, with what stands in place of their embeddings.
            chosen: the options.
            filter: that of the options, parsed.

        Raises:
            InvalidRequest, InvalidCursor: see `of`.
        """
        rules = collection, chosen.ranking(filter)
        return [
            cls.of(
                chosen.cursor,
                limit=chosen.limit,
                offset=chosen.offset,
                question=(query, rules),
                candidates=chosen.candidates,
            )
            for query in queries
        ]

    def after(self, hits: int, stamp: Stamp) -> str:
        """Return the cursor behind the next `hits` hits of this ranking, which has that stamp."""
        return str(Cursor(stamp, self.offset + hits, self.depth, self.question))


def _parts(text: str) -> list[Any] | None:
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        read = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, UnicodeError, ValueError, RecursionError):
        return None
    return cast("list[Any]", read) if isinstance(read, list) else None


def _fit(parts: list[Any]) -> bool:
    """Return True if these are the parts of a cursor, each within its bounds: cursors are not signed."""
    if [type(part) for part in parts] != [int, int, str, int, int, int, str]:
        return False
    written, generation, model, sequence, offset, depth, _ = parts
    return (
        written == _FORMAT
        and 0 < generation < 2**63
        and 0 <= sequence < 2**63
        and re.fullmatch(r"v[0-9]{1,9}", model, re.ASCII) is not None
        and 0 < offset < 2**31  # legs and heads together list more than each proposes
        and 0 < depth <= MAX_OFFSET + MAX_LIMIT
    )


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
    documents_of: DocumentCache,
    page: HitPage,
    reached: Int64[np.ndarray, " batch"],
    *,
    explain: Explain | None = None,
    highlight: ShowPieces | None = None,
    meaning: ShowMeaning | None = None,
    duplicates: Sequence[Int64[np.ndarray, " _"]] | None = None,
) -> list[list[Hit]]:
    """Build the hits of each query, ranks counted from 1; all documents are read in one pass.

    `reached` is `page.reached` of the output.
    """
    stops = np.minimum(reached, page.offset + page.limit).tolist()
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
                    passage=None if passage_of is None else passage_of(query, column, document),
                    duplicates=0 if duplicates is None else int(duplicates[query][column]),
                )
            )
        hits.append(answer)
    return hits


def _passages_shown(
    output: SearchOutput, layer: Ranker, most: int
) -> Callable[[int, int, Document], Passage | None] | None:
    """The passage that each of the first candidates was taken for; of several heads by that which adds most
    to its weight. None where no document has several."""
    passages = layer.snapshot.passages
    keys = layer.keys_of(output, most)
    if keys is None or passages is None:
        return None
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
    reached: Int64[np.ndarray, " batch"],
    hits: Sequence[list[Hit]],
    summaries: Sequence[AttentionSummary],
    page: HitPage,
    stamp: Stamp,
) -> list[SearchResult]:
    """Build one result per query of a batch, given each query's start in its ranking, and its attention.

    `reached` is `page.reached` of the output. How long they took whoever began knows.
    """
    counts: list[int] = reached.tolist()
    return [
        SearchResult(
            query=query,
            hits=page_hits,
            stamp=stamp,
            attention=summary,
            took_ms=math.nan,
            next_cursor=place.after(page.limit, stamp) if more > page.offset + page.limit else None,
        )
        for (query, place), page_hits, summary, more in zip(named, hits, summaries, counts, strict=True)
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

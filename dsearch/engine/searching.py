"""Hits for texts: a batch is answered from one state, and by cursor from the state of the first page."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from dsearch.engine.answers import Page, hits_of, summaries_of
from dsearch.engine.asking import Asked, asked
from dsearch.engine.explaining import explainer
from dsearch.engine.highlighting import highlighter
from dsearch.engine.paging import Place
from dsearch.errors import InvalidRequest
from dsearch.store import parse_filter
from dsearch.types import Mode, SearchResult, Stamp

if TYPE_CHECKING:
    from dsearch.engine.collection import Collection

# Hits of one call that can be explained or highlighted: each costs a look at its text.
MAX_DETAILED = 1000
# Up to this many documents the exact softmax costs less than the encoder: it is computed without being asked.
COVERAGE_DOCUMENTS = 20_000


def search(
    collection: Collection,
    queries: Sequence[str],
    *,
    limit: int = 10,
    offset: int = 0,
    cursor: str | None = None,
    mode: Mode = "hybrid",
    model: str | None = None,
    hops: int | None = None,
    hop_strength: float | None = None,
    filter: object | None = None,
    operators: bool = True,
    score_threshold: float | None = None,
    weight_threshold: float | None = None,
    explain: bool = False,
    highlight: bool = False,
    coverage: bool | None = None,
) -> list[SearchResult]:
    """See `Collection.search`."""
    started = time.perf_counter()
    blank = next((i for i, query in enumerate(queries) if not query.strip()), None)
    if blank is not None:
        raise InvalidRequest(f"query {blank} is empty; give at least one word")
    if cursor is not None and len(queries) != 1:
        raise InvalidRequest(f"cursor and {len(queries)} queries; it goes on with one: ask that alone")
    if (explain or highlight) and len(queries) * limit > MAX_DETAILED:
        raise InvalidRequest(
            f"explain or highlight of {len(queries)} times {limit} hits; use at most {MAX_DETAILED} in all"
        )
    tree = None if filter is None else parse_filter(filter)
    page = Page(limit, offset, score_threshold, weight_threshold)
    rules = (tree, operators, mode, model, hops, hop_strength, score_threshold, weight_threshold)
    places = [Place.of(cursor, limit=limit, offset=offset, question=(query, rules)) for query in queries]
    if not places:
        return []
    groups, stamp = asked(
        collection,
        queries,
        {"mode": mode, "hops": hops, "hop_strength": hop_strength, "candidates": places[0].candidates},
        model=model,
        filter=tree,
        operators=operators,
        pinned=places[0].pinned,
    )
    results = [
        result
        for group in groups
        for result in answered(
            collection,
            group,
            stamp,
            page,
            places=places,
            queries=queries,
            explain=explain,
            highlight=highlight,
            coverage=coverage,
        )
    ]
    order = [number for group in groups for number in group.numbers]
    took_ms = (time.perf_counter() - started) * 1000
    by_number = dict(zip(order, results, strict=True))
    return [replace(by_number[number], took_ms=took_ms) for number in range(len(queries))]


def answered(
    collection: Collection,
    group: Asked,
    stamp: Stamp,
    page: Page,
    *,
    places: Sequence[Place],
    queries: Sequence[str],
    explain: bool,
    highlight: bool,
    coverage: bool | None,
) -> list[SearchResult]:
    """The answers to the queries of a group, in its order; `places` and `queries` are those of the batch."""
    layer, texts = group.layer, group.texts
    with torch.inference_mode():
        found = layer(group.states, texts)
        if coverage is None:
            coverage = layer.snapshot.positions <= COVERAGE_DOCUMENTS
        summaries = summaries_of(found, layer, texts, coverage=coverage)
        page = replace(page, offset=places[0].offset)
        hits = hits_of(
            found,
            layer,
            collection.store,
            page,
            explain=explainer(found, layer, texts) if explain else None,
            highlight=highlighter(layer.snapshot.keyword, texts) if highlight else None,
        )
    reached = page.reached(found).tolist()
    return [
        SearchResult(
            query=queries[number],
            hits=shown,
            stamp=stamp,
            attention=summary,
            took_ms=math.nan,
            next_cursor=places[number].after(page.limit, stamp) if more > page.offset + page.limit else None,
        )
        for number, shown, summary, more in zip(group.numbers, hits, summaries, reached, strict=True)
    ]

"""Hits for texts: one layer over one snapshot answers a batch of queries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dsearch.engine.answers import hits_of, summaries_of
from dsearch.engine.options import CANDIDATES
from dsearch.errors import InvalidRequest
from dsearch.types import Mode, SearchResult

if TYPE_CHECKING:
    from dsearch.engine.collection import Collection

MAX_LIMIT = 1000
MAX_OFFSET = 10_000
# Up to this many documents the exact softmax costs less than the encoder: it is computed without being asked.
COVERAGE_DOCUMENTS = 20_000


def search(
    collection: Collection,
    queries: Sequence[str],
    *,
    limit: int,
    offset: int,
    mode: Mode,
    model: str | None,
    hops: int | None,
    hop_strength: float | None,
    explain: bool,
    coverage: bool | None,
) -> list[SearchResult]:
    """See `Collection.search_batch`."""
    started = time.perf_counter()
    _check_page(limit, offset)
    blank = next((i for i, query in enumerate(queries) if not query.strip()), None)
    if blank is not None:
        raise InvalidRequest(f"query {blank} is empty; give at least one word")
    layer, stamp = collection.layer_and_stamp(
        mode=mode,
        model=model,
        hops=hops,
        hop_strength=hop_strength,
        candidates=max(CANDIDATES, limit + offset),
    )
    with torch.inference_mode():
        states = collection.query_states(queries, mode)
        found = layer(states, None if mode == "dense" else queries)
        if coverage is None:
            coverage = layer.snapshot.positions <= COVERAGE_DOCUMENTS
        summaries = summaries_of(found, layer, queries, coverage=coverage)
    hits = hits_of(found, layer, collection.store, limit=limit, offset=offset, explain=explain)
    took_ms = (time.perf_counter() - started) * 1000
    return [
        SearchResult(query, hits, stamp, summary, took_ms)
        for query, hits, summary in zip(queries, hits, summaries, strict=True)
    ]


def _check_page(limit: int, offset: int) -> None:
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequest(f"limit={limit}; use 1 to {MAX_LIMIT}")
    if not 0 <= offset <= MAX_OFFSET:
        raise InvalidRequest(f"offset={offset}; use 0 to {MAX_OFFSET}")

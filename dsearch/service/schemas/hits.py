"""Hits of a search, in the shape of `answers.SearchAnswer`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dsearch.engine.feedback import Drawn
from dsearch.service.wire.json import new_id, stamped
from dsearch.types import Explanation, Highlight, Hit, Passage, SearchResult


def search_answer(
    result: SearchResult, took_ms: float, query_id: str | None = None, drawn: Drawn | None = None
) -> dict[str, Any]:
    """The answer to one query.

    Args:
        result: what was found, as it is shown.
        took_ms: the whole request's.
        query_id: where the page is remembered for feedback; a new one when None.
        drawn: positions that were left to a coin.
    """
    explored = None if drawn is None else {"pair": list(drawn.pair), "swapped": drawn.swapped}
    return {
        "query_id": query_id or new_id(),
        **stamped(result.stamp),
        "took_ms": took_ms,
        "hits": [_hit(hit) for hit in result.hits],
        "next_cursor": result.next_cursor,
        "explored": explored,
        **({"partial": True, "missing": result.missing} if result.missing else {}),
        "attention": {
            "candidates": result.attention.candidates,
            "entropy": result.attention.entropy,
            "covered_mass": result.attention.covered_mass,
            "null_weight": result.attention.null_weight,
        },
    }


def _hit(hit: Hit) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "rank": hit.rank,
        "id": hit.id,
        "weight": hit.weight,
        "score": hit.score,
        "title": hit.title,
        "text": hit.text,
        "metadata": hit.metadata,
    }
    if hit.explain is not None:
        shown["explain"] = _explained(hit.explain)
    if hit.highlights is not None:
        shown["highlights"] = [_highlighted(piece) for piece in hit.highlights]
    if hit.passage is not None:
        shown["passage"] = _passage(hit.passage)
    return shown


def _explained(explain: Explanation) -> dict[str, Any]:
    return {
        "dense": explain.dense,
        "keyword": explain.keyword,
        "head_weights": explain.head_weights,
        "terms": explain.terms,
        "shares": explain.shares,
        "mixing": explain.mixing,
        "null_weight": explain.null_weight,
        "learned": None if explain.learned is None else asdict(explain.learned),
    }


def _passage(passage: Passage) -> dict[str, Any]:
    return {"ordinal": passage.ordinal, "start": passage.start, "end": passage.end, "text": passage.text}


def _highlighted(piece: Highlight) -> dict[str, Any]:
    return {"field": piece.field, "start": piece.start, "text": piece.text, "spans": piece.spans}

"""Outcomes and clicks as rows of the query memory: one row for each query and key.

    grade(d) = what the key's users did with d, the best = 1      opened with profit, clicked, thumb up
             = −`LEFT`                                            an agent saw it and left it; thumb down

A key is the id of an API key, or of a client where there are no keys. However many rows a key has, they share
at most `KEY_SHARE` of a query's attention (attention/memory_rows.py).

`LEFT` = .2 was chosen on 500 simulated tasks over NFCorpus' training queries: held-out queries of three draws
rise by .0039 ± .0020, without negatives by .0024 ± .0022, with .4 by .0018 ± .0027.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dsearch.store import Page
from dsearch.training.data.actions import ACTIONS
from dsearch.training.data.clicks import ClickOptions, Reaction, reactions_of
from dsearch.training.data.propensity import Propensities
from dsearch.types import query_name

LEFT = 0.2
MOST_ROWS = 10_000  # of a batch; the newest


@dataclass(frozen=True, slots=True)
class GradedQuery:
    """Acts of one key on the pages of one query, graded.

    Attributes:
        text: query as it was written.
        key: id of an API key, or of a client.
        grades: document → grade, the best 1, below 0 for what was left.
        shown_s: time of its newest page, in seconds since 1970.
    """

    text: str
    key: str
    grades: Mapping[str, float]
    shown_s: float


def graded_queries(
    pages: Iterable[Page], propensities: Propensities, options: ClickOptions | None = None
) -> tuple[list[GradedQuery], dict[str, int]]:
    """Rows of all pages, the newest first; and how many were left out, by reason."""
    options = options or ClickOptions()
    left_out: Counter[str] = Counter()
    pages = list(pages)
    newest: dict[tuple[str, str], tuple[float, str]] = {}
    for page in pages:
        impression = page.impression
        for key in {event.key for event in page.events}:
            at = query_name(impression.query), key
            newest[at] = max(newest.get(at, (impression.shown_s, "")), (impression.shown_s, impression.query))
    graded: list[GradedQuery] = []
    for name, documents in reactions_of(pages, propensities, options.clip, left_out).items():
        for key in sorted({key for keys in documents.values() for key in keys}):
            grades = _grades({id: keys[key] for id, keys in documents.items() if key in keys})
            if grades:
                shown_s, text = newest[name, key]
                graded.append(GradedQuery(text, key, grades, shown_s))
    graded.sort(key=lambda row: (-row.shown_s, row.key, row.text))
    left_out["queries of an older date than the newest of a batch"] += max(len(graded) - MOST_ROWS, 0)
    return graded[:MOST_ROWS], {why: n for why, n in left_out.items() if n}


def _grades(documents: Mapping[str, Reaction]) -> dict[str, float]:
    """Grades by one key; empty if nothing was of use."""
    liked: dict[str, float] = {}
    for id, acts in documents.items():
        worth = acts.mass if acts.profit is None else acts.profit * acts.mass / max(acts.clicks, 1)
        worth = max(worth, ACTIONS["thumbs_up"].grade) if acts.up > 0 else worth
        if worth > 0 and acts.up >= 0:
            liked[id] = worth
    if not liked:
        return {}
    best = max(liked.values())
    left = {id: -LEFT for id, acts in documents.items() if acts.up < 0 or acts.profit == 0}
    return {**left, **{id: worth / best for id, worth in liked.items()}}

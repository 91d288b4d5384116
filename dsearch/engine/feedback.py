"""Pages of hits, recorded for feedback; on a small share of them two documents are swapped at random.

People click the top hits, good or not. The effect of the position on clicks can be estimated only where the
position was random. Therefore two positions are drawn on a share of the pages, and a coin decides whether
their documents swap places (swap interventions: Joachims, Swaminathan and Schnabel, WSDM 2017, section 5).
Both outcomes are recorded. On these pages the two documents are exchangeable, so any difference between the
clicks of the two positions is an effect of the positions.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dsearch.errors import InvalidRequest
from dsearch.store import Impression
from dsearch.store.feedback.records import SHOWN
from dsearch.types import Hit, SearchResult

MAX_EXPLORE = 0.2
DEPTH = 10  # positions that may be swapped


@dataclass(frozen=True, slots=True)
class RandomPair:
    """Two positions of a page that were left to a coin.

    Attributes:
        pair: the positions, counted from 1, the upper one first.
        swapped: whether their documents changed places.
    """

    pair: tuple[int, int]
    swapped: bool


def explored(
    hits: Sequence[Hit], share: float, generator: random.Random
) -> tuple[list[Hit], RandomPair | None]:
    """Swap two positions at random on a share of the pages.

    Half of the pairs are neighbours, which costs the reader little; half are the first position and another
    one, which relates every position to the first.

    Args:
        hits: page from rank 1; other pages, and pages with fewer than two hits, are unchanged.
        share: share of pages with a pair, 0 to 0.2; on half of these the documents stay.
        generator: source of randomness.

    Returns:
        The hits in display order, ranks from 1, and the pair; None without one.

    Raises:
        InvalidRequest: a share out of range.
    """
    if not 0 <= share <= MAX_EXPLORE:
        raise InvalidRequest(f"explore={share}; use a number from 0 to {MAX_EXPLORE}")
    page = list(hits)
    last = min(len(page), DEPTH)
    if share == 0 or last < 2 or page[0].rank != 1 or generator.random() >= share:
        return page, None
    if generator.random() < 0.5:
        upper = generator.randint(1, last - 1)
        pair = (upper, upper + 1)
    else:
        pair = (1, generator.randint(2, last))
    swapped = generator.random() < 0.5
    if swapped:
        a, b = pair[0] - 1, pair[1] - 1
        page[a], page[b] = replace(page[b], rank=a + 1), replace(page[a], rank=b + 1)
    return page, RandomPair(pair, swapped)


def impression_of(
    result: SearchResult,
    query_id: str,
    *,
    key: str = "",
    drawn: RandomPair | None = None,
    shown_s: float | None = None,
) -> Impression:
    """Create the impression of a page, with its first hits.

    Args:
        result: result with its hits in display order.
        query_id: id of the search.
        key: API key of the request.
        drawn: pair drawn by `explored`.
        shown_s: time in seconds since 1970; now when None.
    """
    hits = result.hits[:SHOWN]
    return Impression(
        query_id=query_id,
        query=result.query,
        shown_s=time.time() if shown_s is None else shown_s,
        generation=result.stamp.generation,
        model=result.stamp.model,
        sequence=result.stamp.sequence,
        key=key,
        ids=tuple(hit.id for hit in hits),
        weights=tuple(hit.weight for hit in hits),
        first=hits[0].rank if hits else 1,
        pair=None if drawn is None else drawn.pair,
        swapped=drawn is not None and drawn.swapped,
    )

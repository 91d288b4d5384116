"""From attention over candidates to hits: documents come from the shards that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from dsearch.attention.head import Head
from dsearch.cluster.attending import Shards
from dsearch.cluster.merging import Candidates
from dsearch.cluster.questions import Showing, Shown
from dsearch.engine.answers import Page
from dsearch.engine.explaining import explained
from dsearch.engine.search_output import SearchOutput
from dsearch.types import Hit


@dataclass(frozen=True, slots=True)
class _Place:
    """A hit: the number of its query and its column."""

    query: int
    column: int


def hits_of(
    found: SearchOutput,
    candidates: Candidates,
    shards: Shards,
    head: Head,
    texts: Sequence[str] | None,
    page: Page,
    *,
    shown_words: Sequence[str] | None,
    explain: bool,
    highlight: bool,
) -> list[list[Hit]]:
    """The hits of each query, ranks counted from 1; each shard is asked once.

    Args:
        found: attention over the candidates.
        candidates: in the same order.
        shards: where their documents are.
        head: whose attention it is.
        texts: the words that keyword scores are of; None where words had no part.
        page: which hits are wanted.
        shown_words: the words that are highlighted.
        explain: whether hits carry the parts of their scores.
        highlight: whether hits carry the pieces that show the words.
    """
    stops = np.minimum(page.reached(found), page.offset + page.limit).tolist()
    places = [
        _Place(query, column) for query, stop in enumerate(stops) for column in range(page.offset, stop)
    ]
    by_shard: dict[int, list[_Place]] = {}
    for place in places:
        by_shard.setdefault(int(candidates.shards[place.query, place.column]), []).append(place)
    taken = _keys(found, candidates, head)
    words = shown_words if highlight else texts
    asked = {
        shard: Showing(
            positions=[int(candidates.positions[place.query, place.column]) for place in here],
            keys=None if taken is None else [int(taken[place.query, place.column]) for place in here],
            queries=None if words is None else [words[place.query] for place in here],
            explain=explain and texts is not None,
            highlight=highlight,
            weighting=head.keyword_weighting,
        )
        for shard, here in by_shard.items()
    }
    answers = cast("Mapping[int, list[Shown]]", shards.ask("show", asked) if asked else {})
    shown = {
        place: document
        for shard, here in by_shard.items()
        for place, document in zip(here, answers[shard], strict=True)
    }
    why = explained(found, head, head.temperature) if explain else None
    weights, scores = found.weights.numpy(), found.scores.numpy()
    hits: list[list[Hit]] = [[] for _ in stops]
    for place in places:
        one, query, column = shown[place], place.query, place.column
        hits[query].append(
            Hit(
                rank=column + 1,
                id=one.document.id,
                weight=float(weights[query, column]),
                score=float(scores[query, column]),
                title=one.document.title,
                text=one.document.text,
                metadata=one.document.metadata,
                explain=None if why is None else why(query, column, one.terms),
                highlights=one.highlights,
                passage=one.passage,
            )
        )
    return hits


def _keys(found: SearchOutput, candidates: Candidates, head: Head) -> np.ndarray | None:
    """The key that a candidate was taken for; of several heads by that which adds most to its weight."""
    if found.keys is None:
        return None
    shares = (found.head_weights * head.mixture.detach()[:, None]).numpy()
    heads = torch.as_tensor(shares.argmax(axis=1)).numpy()
    return np.take_along_axis(candidates.keys, heads[:, None], 1)[:, 0]

"""How many documents shards send at once, and with what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.cluster.search import search as module
from dsearch.cluster.search.search import HitFields, preview
from dsearch.engine.search.hits import HitPage

PLAIN = HitFields(None, explain=False, highlight=False)


@pytest.mark.parametrize(
    ("limit", "offset", "shards", "sent"),
    [
        (10, 0, 1, 10),  # the page, not twice of it
        (10, 0, 4, 7),  # 2 · 10 / 4 + 2
        (10, 0, 8, 5),  # rounded up
        (10, 0, 9, None),
        (10, 1, 4, None),
        (1, 0, 4, 1),
        (100, 0, 3, 69),
    ],
)
def test_each_shard_sends_twice_its_share_and_two(
    limit: int, offset: int, shards: int, sent: int | None
) -> None:
    asked = preview(page(limit, offset), PLAIN, shards)
    assert (None if asked is None else asked.most) == sent


def page(limit: int, offset: int = 0) -> HitPage:
    return HitPage(limit=limit, offset=offset)


def test_fields_of_hits_follow_from_the_search() -> None:
    words = ["river stone"]
    hybrid = HitFields.of(words, "hybrid", explain=True, highlight=False)
    assert (hybrid.words, hybrid.explain, hybrid.highlight) == (words, True, False)
    dense = HitFields.of(words, "dense", explain=True, highlight=False)
    assert (dense.words, dense.explain) == (None, False)  # no word has a part of its score
    marked = HitFields.of(words, "dense", explain=True, highlight=True)
    assert (marked.words, marked.explain, marked.highlight) == (words, False, True)
    assert HitFields.of(None, "hybrid", explain=True, highlight=False).explain is False
    asked = preview(page(5), hybrid, 2)
    assert asked is not None
    assert (asked.words, asked.explain, asked.highlight) == ("river stone", True, False)
    by_meaning = HitFields.of(words, "hybrid", explain=False, highlight=True, meaning=[])
    assert preview(page(5), by_meaning, 2) is None


def test_the_passage_is_of_the_head_that_adds_most_to_the_weight(unchecked: None) -> None:
    """The second head finds less of the document, and counts more."""
    keys = np.array([[[5, 6], [7, 8]]])
    output: Any = SimpleNamespace(
        keys=keys, head_weights=torch.tensor([[[0.9, 0.9], [0.5, 0.01]]]), folded=None
    )
    head: Any = SimpleNamespace(mixture_of=lambda folded: torch.tensor([[0.25, 0.75]]))
    taken = module._keys(output, head)
    assert taken is not None
    assert taken.tolist() == [[7, 6]]

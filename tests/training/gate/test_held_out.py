"""How held-out queries are answered, those with documents that were trained on apart."""

from __future__ import annotations

import numpy as np
import pytest

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.training import examples_from_judgements
from dsearch.training.gate.held_out import HeldOut
from dsearch.training.ranking import Ranking
from dsearch.training.relevant import DEPTH
from dsearch.types import Document

SEEN = 2 * DEPTH


@pytest.fixture
def ranked(engine: SearchEngine) -> Collection:
    """Forty documents, one nearer to the query than the next."""
    collection = engine.create("ranked")
    words = [f"filler{i}" for i in range(40)]
    collection.ingest([Document(f"d{i}", " ".join(["apple"] * (40 - i) + words[:i])) for i in range(40)])
    return collection


def test_unseen_documents_behind_many_seen_ones_count(ranked: Collection) -> None:
    """Taking out the seen documents leaves the first ten of the rest: the ranking has to reach so far."""
    everything = examples_from_judgements(ranked, {"q": "apple"}, {"q": {"d0": 1.0}})
    order = ranked.ids_at(everything.snapshot, Ranking(everything, keywords=False).top(Head(32), 40))[0]
    seen, unseen = order[:SEEN], order[SEEN + 1]  # the second of what is left
    judged = {"q": {**dict.fromkeys(seen, 1.0), unseen: 1.0}, "r": dict.fromkeys(seen, 1.0)}
    examples = examples_from_judgements(ranked, {"q": "apple", "r": "pear"}, judged)
    held_out = HeldOut(examples.subset([0]), examples.subset([1]), keywords=False)
    answers = held_out.answers(Head(32))
    assert answers.seen.tolist() == [True]
    assert answers.all.tolist() == pytest.approx([1.0])
    assert answers.unseen.tolist() == pytest.approx([1 / np.log2(3)])  # rank 2 of the residual collection

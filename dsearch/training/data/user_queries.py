"""Queries made of documents that look like those of users, to judge a head that learned from the corpus.

A head that learned from sentences answers sentences better, and that says little: they are long, and users
have keywords beside it. So some documents are held out of training, and one query is made of each, in turn

    its title · the beginning of its first sentence · some words of a stretch of it, as remembered

which are ranked as they would be served, with keywords, and compared with what answers now. They share words
with their documents, so they flatter keywords: they show harm better than gain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dsearch.corpus import sentences
from dsearch.corpus.made_queries import known_item_query
from dsearch.engine import Collection
from dsearch.training.data.examples import Examples, make_examples
from dsearch.types import Document, query_name

MOST_JUDGING = 400
FEWEST_JUDGING = 20
_SHARE = 5  # one document of so many judges
_FIRST_WORDS = 10
_FEWEST_WORDS = 2


def user_like_queries(documents: Sequence[Document], seed: int = 0) -> list[tuple[str, str]]:
    """One query of each document that has one: (query, id); of several documents with one query none."""
    pairs: list[tuple[str, str]] = []
    for number, document in enumerate(documents):
        kinds = [_title(document), _beginning(document), known_item_query(document, seed)]
        turn = number % len(kinds)
        query = next((kind for kind in kinds[turn:] + kinds[:turn] if kind is not None), None)
        if query is not None:
            pairs.append((query, document.id))
    times = Counter(query_name(query) for query, _ in pairs)
    return [(query, id) for query, id in pairs if times[query_name(query)] == 1]


def with_judging_queries(
    collection: Collection, examples: Examples, seed: int = 0
) -> tuple[Examples, Examples | None]:
    """The examples without those of some documents, and queries made of these; None if there are too few.

    Args:
        collection: collection of the documents.
        examples: examples of the corpus.
        seed: random seed of the choice of documents.
    """
    snapshot = examples.snapshot
    visible = snapshot.visible()
    count = min(MOST_JUDGING, len(visible) // _SHARE)
    drawn = np.sort(np.random.default_rng([seed, 5]).permutation(visible)[:count])
    documents = collection.store.documents(snapshot.rows(drawn))
    position_of = dict(zip((document.id for document in documents), drawn.tolist(), strict=True))
    pairs = user_like_queries(documents, seed)
    others = [number for number, (at, _) in enumerate(examples.relevant) if not np.isin(at, drawn).any()]
    if len(pairs) < FEWEST_JUDGING or not others:
        return examples, None
    relevant = [(np.array([position_of[id]], np.int64), np.ones(1, np.float32)) for _, id in pairs]
    judging = make_examples(collection, snapshot, [query for query, _ in pairs], relevant, {})
    return examples.subset(others), replace(judging, source="documents")


def _title(document: Document) -> str | None:
    words = document.title.split()
    return " ".join(words) if len(words) >= _FEWEST_WORDS and document.text.strip() else None


def _beginning(document: Document) -> str | None:
    first = next(iter(sentences(document.text)), "")
    words = first.rstrip(".!?…。！？").split()[:_FIRST_WORDS]
    return " ".join(words).lower() if len(words) > _FEWEST_WORDS else None

"""Episodes: queries that were judged as one, such as the title and the topic of one article.

Data often has several queries of one origin with nearly the same judgements. Held-out answers to one of them
by what was learned from the others promise what no new query will find: on NFCorpus a query memory seemed to
gain .110 and brought .090. So an episode is held out as a whole.

Two queries are of one episode if their relevant documents A and B agree, and so are those that are connected
over others:

    |A ∩ B| / |A ∪ B| ≥ AGREEMENT        |A|, |B| ≥ FEWEST

Smaller sets agree by chance: two questions may well have the same single answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

AGREEMENT = 0.8  # at .5, a memory is held to know no related question either (guide decisions)
FEWEST = 3


def episodes_of(
    relevant: Sequence[tuple[Int64[np.ndarray, " _"], np.ndarray]],
) -> Int64[np.ndarray, " queries"]:
    """A number for each query, equal within an episode.

    Only sets that share one of their rarest documents are compared: sets that agree do (prefix filtering,
    Chaudhuri, Ganti and Kaushik 2006; Bayardo, Ma and Srikant 2007).

    Args:
        relevant: for each query, its relevant positions, and grades that have no part.
    """
    parent = list(range(len(relevant)))

    def root(query: int) -> int:
        while parent[query] != query:
            parent[query] = parent[parent[query]]
            query = parent[query]
        return query

    sets = [frozenset(positions.tolist()) for positions, _ in relevant]
    times: dict[int, int] = {}
    for document in (document for of in sets for document in of):
        times[document] = times.get(document, 0) + 1
    sharing: dict[int, list[int]] = {}
    for query, own in enumerate(sets):
        if len(own) < FEWEST:
            continue
        rarest = sorted(own, key=lambda document: (times[document], document))
        for document in rarest[: len(own) - math.ceil(AGREEMENT * len(own)) + 1]:
            others = sharing.setdefault(document, [])
            for other in others:
                if root(other) != root(query) and _agree(own, sets[other]):
                    parent[root(query)] = root(other)
            others.append(query)
    return np.array([root(query) for query in range(len(relevant))], np.int64)


def _agree(first: frozenset[int], second: frozenset[int]) -> bool:
    common = len(first & second)
    return common >= AGREEMENT * (len(first) + len(second) - common)

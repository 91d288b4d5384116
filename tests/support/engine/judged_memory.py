"""A query memory of judged queries over a collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.engine import Collection


def memory_of_judged(
    collection: Collection,
    queries: Sequence[str],
    judged: Sequence[Mapping[str, float]],
    *,
    strength: float = 0.6,
    lending: float = 1.0,
) -> QueryMemory:
    """Past queries with the grades that each gave to documents, by id."""
    ids = sorted({id for grades in judged for id in grades})
    rows = collection.store.rows_of(ids)
    of_row = np.array([rows[id] for id in ids])
    positions = collection.snapshot.positions_of(of_row)
    pairs = [(n, ids.index(id), grade) for n, grades in enumerate(judged) for id, grade in grades.items()]
    of_query, of_document, grades = (np.array(column) for column in zip(*pairs, strict=True))
    states = collection.query_states(queries, "hybrid").numpy()
    embeddings = collection.snapshot.embeddings(positions[None])[0]
    memory = QueryMemory(states, embeddings, of_row, of_query, of_document, grades, texts=[*queries])
    return memory.with_setting(strength, 0.05, 0.5, lending)

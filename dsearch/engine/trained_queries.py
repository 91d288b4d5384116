"""Queries that a model was trained on, to tell them apart in evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from dsearch.engine.collection import Collection
from dsearch.engine.models.files import UNTRAINED
from dsearch.types import Query, query_name

_SAME = 1 - 1e-5  # cosine of two embeddings of one text, by different batches or back ends


def trained_on(
    collection: Collection,
    version: str,
    queries: Sequence[Query],
    states: Float32[np.ndarray, "queries encoder_dim"],
) -> list[str]:
    """Ids of the queries that a version or one of its ancestors was trained on.

    They are recognised by their text, without regard to case and white space; those of clicks, whose texts
    are not stored, by their embeddings. Versions that store no training queries, such as tuned and uploaded
    ones, recognise none.

    Args:
        collection: collection of the model.
        version: the model.
        queries: queries to recognise.
        states: their embeddings by the encoder that training started from.
    """
    recognised: set[str] = set()
    at: str | None = version
    while at is not None and at != UNTRAINED:
        lessons = collection.lessons_of(at)
        if lessons is not None and lessons.texts is not None:
            texts = {query_name(text) for text in lessons.texts}
            recognised |= {query.id for query in queries if query_name(query.text) in texts}
        elif lessons is not None and len(lessons) and lessons.states.shape[1] == states.shape[1]:
            nearest = (states @ lessons.states.T).max(1)
            recognised |= {query.id for query, near in zip(queries, nearest, strict=True) if near >= _SAME}
        at = collection.store.model(at).parent
    return [query.id for query in queries if query.id in recognised]

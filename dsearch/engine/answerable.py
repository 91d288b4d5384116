"""How well a model tells queries that nothing in the collection answers from those that something does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dsearch.evaluation.calibration import Answerability, answerability

if TYPE_CHECKING:
    from dsearch.engine.collection_reader import CollectionReader

_AT_A_TIME = 64
NOTHING = -1e30  # the score in place of a first hit that is not there


def judged_answerability(
    collection: CollectionReader,
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, float | int]],
    *,
    model: str | None = None,
) -> Answerability | None:
    """Both measures of a model's null slot, or of its first hits' scores where it has none.

    Args:
        collection: what is asked.
        queries: query id → text.
        qrels: query id → document id → grade; a query whose grades are all 0 or less is unanswerable.
        model: a version; the live one when None.

    Returns:
        None where the judgements hold no query of one of the two kinds.
    """
    texts, wrong = list[str](), list[bool]()
    for query, grades in qrels.items():
        if grades and (text := queries.get(query, "").strip()):
            texts.append(text)
            wrong.append(max(grades.values()) <= 0)
    if not any(wrong) or all(wrong):
        return None
    weights, scores = _asked(collection, texts, model)
    unanswerable = np.array(wrong)
    if weights is None:
        return answerability(-scores, unanswerable, slot=False)
    return answerability(weights, unanswerable)


def _asked(
    collection: CollectionReader, texts: Sequence[str], model: str | None
) -> tuple[np.ndarray | None, np.ndarray]:
    """The slot's weight for each query, None without a slot, and the first hit's score."""
    weights, scores = list[float | None](), list[float]()
    for start in range(0, len(texts), _AT_A_TIME):
        for result in collection.search_batch(
            texts[start : start + _AT_A_TIME], limit=1, model=model, operators=False, coverage=False
        ):
            weights.append(result.attention.null_weight)
            scores.append(result.hits[0].score if result.hits else NOTHING)
    told = [weight for weight in weights if weight is not None]
    return (np.array(told) if len(told) == len(weights) else None), np.array(scores)

"""Measures of a ranking, per query, as trec_eval defines them: nDCG, Recall, reciprocal rank, AP, precision.

They work on rows of gains (grade of the document at each rank, 0 if unjudged), many queries at once. nDCG has
the linear gain of trec_eval and BEIR, not 2^grade - 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from dsearch.errors import InvalidRequest
from dsearch.evaluation.qrels import without_pairs, without_positives

Ranking: TypeAlias = Sequence[tuple[str, float]]
Values: TypeAlias = dict[str, dict[str, float]]
"""Measure name → {query id: value in [0, 1]}."""

DEFAULT_MEASURES = ("nDCG@10", "Recall@100", "RR@10", "AP")
QUERIES_AT_ONCE = 1024


def evaluate(
    run: Mapping[str, Ranking],
    qrels: Mapping[str, Mapping[str, float]],
    measures: Sequence[str] = DEFAULT_MEASURES,
    exclude: Mapping[str, Collection[str]] | None = None,
) -> Values:
    """Every measure for every judged query, in the order of `qrels`.

    Pairs in `exclude` are removed from rankings (later documents move up) and judgements. Queries without a
    relevant document are omitted (`without_positives` counts them); judged queries that the run lacks get 0;
    unjudged queries are ignored. The order of a ranking counts, not its scores.

    Args:
        run: query id → (document id, score), best first.
        qrels: query id → {document id: grade}; above 0 is relevant.
        measures: `nDCG`, `Recall`, `RR`, `AP`, `P`, each with `@k` or, except for `P`, without.
        exclude: query id → document ids to be left out.

    Raises:
        InvalidRequest: an unknown measure, or a ranking that has a document twice.
    """
    parsed = {name: parse_measure(name) for name in measures}
    evaluated = without_pairs(qrels, exclude)
    for query in without_positives(evaluated):
        del evaluated[query]
    values: Values = {name: {} for name in measures}
    for queries in _blocks(iter(evaluated), QUERIES_AT_ONCE):
        judged = _judge(queries, run, evaluated, exclude or {})
        for name, (function, cutoff) in parsed.items():
            values[name].update(zip(queries, function(judged, cutoff).tolist(), strict=True))
    return values


def mean_values(values: Values) -> dict[str, float]:
    """Average each measure over its queries; 0 without any."""
    return {name: float(np.mean(list(by.values()))) if by else 0.0 for name, by in values.items()}


@dataclass(frozen=True, slots=True)
class JudgedQuery:
    """Rankings of some queries as numbers, padded with zeros."""

    gains: Float[np.ndarray, "queries depth"]
    """The grade at each rank; 0 for unjudged documents and for grades below 0."""
    ideal: Float[np.ndarray, "queries positives"]
    """The positive grades of each query, falling."""


def ndcg(judged: JudgedQuery, cutoff: int | None) -> Float[np.ndarray, " queries"]:
    """DCG@k over the ideal one; DCG@k = Σ_{i ≤ k} grade_i / log2(i + 1) (Järvelin & Kekäläinen 2002)."""
    return _discounted(judged.gains[:, :cutoff]) / _discounted(judged.ideal[:, :cutoff])


def recall(judged: JudgedQuery, cutoff: int | None) -> Float[np.ndarray, " queries"]:
    """Share of the relevant documents among the first k."""
    return (judged.gains[:, :cutoff] > 0).sum(axis=1) / (judged.ideal > 0).sum(axis=1)


def reciprocal_rank(judged: JudgedQuery, cutoff: int | None) -> Float[np.ndarray, " queries"]:
    """Reciprocal rank of the first relevant document; 0 without one in the first k."""
    relevant = judged.gains[:, :cutoff] > 0
    return np.where(relevant.any(axis=1), 1.0 / (relevant.argmax(axis=1) + 1), 0.0)


def average_precision(judged: JudgedQuery, cutoff: int | None) -> Float[np.ndarray, " queries"]:
    """Precision at the rank of each relevant document, averaged over all relevant ones."""
    relevant = judged.gains[:, :cutoff] > 0
    precision_at = relevant.cumsum(axis=1) / np.arange(1, relevant.shape[1] + 1)
    return (precision_at * relevant).sum(axis=1) / (judged.ideal > 0).sum(axis=1)


def precision(judged: JudgedQuery, cutoff: int | None) -> Float[np.ndarray, " queries"]:
    """Number of relevant documents among the first k, divided by k even for shorter rankings."""
    assert cutoff is not None, "parse_measure asks for a cutoff"
    return (judged.gains[:, :cutoff] > 0).sum(axis=1) / cutoff


Measure: TypeAlias = Callable[[JudgedQuery, int | None], Float[np.ndarray, " queries"]]
MEASURES: dict[str, Measure] = {
    "nDCG": ndcg,
    "Recall": recall,
    "RR": reciprocal_rank,
    "AP": average_precision,
    "P": precision,
}


def parse_measure(name: str) -> tuple[Measure, int | None]:
    """`nDCG@10` → (ndcg, 10), `AP` → (average_precision, None).

    Raises:
        InvalidRequest: an unknown name, a cutoff that is not a whole number from 1, or `P` without cutoff.
    """
    match = re.fullmatch(r"([A-Za-z]+)(?:@([1-9][0-9]*))?", name)
    if match is None or match[1] not in MEASURES or (match[1] == "P" and match[2] is None):
        raise InvalidRequest(
            f"measure {name!r}; use one of {', '.join(MEASURES)}, with a cutoff as in nDCG@10 or P@5"
        )
    return MEASURES[match[1]], int(match[2]) if match[2] else None


def _judge(
    queries: Sequence[str],
    run: Mapping[str, Ranking],
    qrels: Mapping[str, Mapping[str, float]],
    exclude: Mapping[str, Collection[str]],
) -> JudgedQuery:
    gains: list[list[float]] = []
    ideal: list[list[float]] = []
    for query in queries:
        grades = qrels[query]
        left_out = exclude.get(query, ())
        documents = [document for document, _ in run.get(query, ())]
        if len(set(documents)) != len(documents):
            raise InvalidRequest(
                f"query {query!r}: a document is ranked twice; a run ranks each at most once"
            )
        gains.append(
            [max(grades.get(document, 0.0), 0.0) for document in documents if document not in left_out]
        )
        ideal.append(sorted((grade for grade in grades.values() if grade > 0), reverse=True))
    return JudgedQuery(_padded(gains), _padded(ideal))


def _padded(rows: Sequence[Sequence[float]]) -> Float[np.ndarray, "rows longest"]:
    longest = max(1, *map(len, rows)) if rows else 1
    padded = np.zeros((len(rows), longest))
    for row, values in enumerate(rows):
        padded[row, : len(values)] = values
    return padded


def _discounted(gains: Float[np.ndarray, "queries depth"]) -> Float[np.ndarray, " queries"]:
    return gains @ (1.0 / np.log2(np.arange(2, gains.shape[1] + 2)))


def _blocks(queries: Iterator[str], size: int) -> Iterator[list[str]]:
    while block := list(islice(queries, size)):
        yield block

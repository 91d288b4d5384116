"""Bootstrap confidence intervals of a mean, or a difference of means, over queries.

Queries are resampled with replacement `samples` times; the interval is the middle 95 % of the resampled means
(the percentile bootstrap, Efron 1979; for paired system comparison Sakai, SIGIR 2006).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from dsearch.errors import InvalidRequest, amount

DRAWS_AT_ONCE = 1 << 17  # counts at a time: 1 MiB, which stays in the cache of a core


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % bootstrap interval.

    `p_one_sided` is the share of resampled means at or below 0, (count + 1) / (samples + 1): for a
    difference a - b small when a is really better than b.
    """

    mean: float
    low: float
    high: float
    p_one_sided: float


def paired_bootstrap(
    a: Mapping[str, float], b: Mapping[str, float], samples: int = 10_000, seed: int = 0
) -> Interval:
    """The mean of a - b over queries; a and b are two systems' values for the same queries, paired by id.

    Raises:
        InvalidRequest: the two have different queries, there are none, or `samples` is below 1.
    """
    if a.keys() != b.keys():
        odd = sorted(a.keys() ^ b.keys())
        raise InvalidRequest(
            f"{amount(len(a), 'value')} and {len(b)} cannot be paired: "
            f"{amount(len(odd), 'query is', 'queries are')} in one only, such as "
            f"{odd[0]!r}; evaluate both systems on the same judgements"
        )
    return bootstrap_mean({query: a[query] - b[query] for query in a}, samples, seed)


def bootstrap_mean(values: Mapping[str, float], samples: int = 10_000, seed: int = 0) -> Interval:
    """The mean of `values` over queries.

    Raises:
        InvalidRequest: there are no values, or `samples` is below 1.
    """
    return bootstrap_columns(np.array(list(values.values()), dtype=float)[:, None], samples, seed)[0]


def bootstrap_columns(
    values: Float[np.ndarray, "queries columns"], samples: int = 10_000, seed: int = 0
) -> list[Interval]:
    """Compute one interval per column; all columns share the same draws, which is cheap.

    The intervals depend on the order of the queries, within the noise of resampling; the same seed and order
    give the same intervals.

    Raises:
        InvalidRequest: there are no queries, or `samples` is below 1.
    """
    queries = len(values)
    if queries == 0 or samples < 1:
        raise InvalidRequest(
            f"{amount(queries, 'value')} and {samples} samples; a bootstrap needs at least one of each"
        )
    generator = np.random.default_rng(seed)
    means: list[Float[np.ndarray, "block columns"]] = []
    block = max(1, DRAWS_AT_ONCE // queries)
    for start in range(0, samples, block):
        size = min(block, samples - start)
        draws = generator.integers(queries, size=(size, queries))
        draws += queries * np.arange(size)[:, None]  # each sample has its own range of one bincount
        counts = np.bincount(draws.ravel(), minlength=size * queries).reshape(size, queries)
        means.append(counts.astype(float) @ values / queries)
    drawn = np.concatenate(means)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    p = (np.sum(drawn <= 0, axis=0) + 1) / (samples + 1)
    return [
        Interval(float(m), float(lo), float(hi), float(q))
        for m, lo, hi, q in zip(values.mean(axis=0), low, high, p, strict=True)
    ]

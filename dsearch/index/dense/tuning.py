"""Search for parameters that reach a target recall, and measure recall, speed and size of the tuned index.

Queries are passed in, or derived from the collection's own keys. A stored key is an easier query than a real
one, because graph and lists are densest around it. The mean of five random keys is harder, as real queries
are: on four collections with all-MiniLM-L6-v2, parameters tuned to a recall of .99 on such means gave real
queries .994 to .995 (HNSW) and .968 to .995 (IVF, IVFPQ), parameters tuned on stored keys .93 to .99. Pass
real queries if there are any.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int64

from dsearch.errors import InvalidRequest
from dsearch.index.dense.index import DenseIndex
from dsearch.index.dense.kinds import AUTO, BOUNDS, candidates_for
from dsearch.index.exact import best_of_blocks
from dsearch.index.validation import projected

RECALL_AT = 10
RECALL_TARGET = 0.99

_QUERIES = 400
_QUERIES_OF_EXACT = 20  # for an index that compares every key, where only the speed is measured
_TIMED_QUERIES = 100
_TIMED_S = 1.0
_MIXED = 5  # keys averaged to a query
_NEAR = 0.001  # recall difference that is not worth a slower search
_BLOCK = 8192


@dataclass(frozen=True, slots=True)
class IndexMeasurement:
    """Measured recall, speed and size of an index.

    Attributes:
        recall_at_10: share of the exact ten nearest keys that it returns.
        queries_per_s: one query at a time, on the machine and with the threads of the measurement.
        bytes_per_document: stored size of the index divided by the number of keys.
        queries: number of queries of the measurement.
        target: target recall of the tuning; None for an index without parameters.
    """

    recall_at_10: float
    queries_per_s: float
    bytes_per_document: float
    queries: int
    target: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def tuned(
    index: DenseIndex,
    keys: Float[np.ndarray, "documents dim"],
    *,
    projection: Float[np.ndarray, "key_dim dim"] | None = None,
    queries: Float[np.ndarray, "queries key_dim"] | None = None,
    target: float = RECALL_TARGET,
) -> tuple[DenseIndex, IndexMeasurement | None]:
    """Tune `index` to the cheapest parameters whose recall@10 reaches `target`, and measure it with them.

    If none reaches it, the smallest parameters close to the best recall are used; `IndexMeasurement` shows
    the difference. An index that compares every key has no parameters and is only measured, an exact one with
    few queries. The measurement is None without keys.

    Args:
        index: index of `keys`, or of their projections.
        keys: the keys it was built from; read in blocks, once.
        projection: as for `DenseIndex.build`.
        queries: representative query vectors; derived from the keys when None.
        target: recall, 0 to 1.
    """
    if len(index) == 0:
        return index, None
    most = _QUERIES_OF_EXACT if index.kind == "Flat" else _QUERIES
    if queries is None or len(queries) == 0:
        queries = sample_queries(keys, projection, most)
    queries = np.ascontiguousarray(queries[:most], np.float32)
    truth = exact_neighbours(keys, queries, projection)
    if index.parameters:
        index = index.using(_search(index, queries, truth, target))
    measured = IndexMeasurement(
        recall_at_10=round(recall(index, queries, truth), 4),
        queries_per_s=round(queries_per_s(index, queries), 1),
        bytes_per_document=round(index.stored_bytes() / len(index), 1),
        queries=len(queries),
        target=target if index.parameters else None,
    )
    return index, measured


def build_tuned(
    keys: Float[np.ndarray, "documents dim"],
    kind: str = AUTO,
    *,
    projection: Float[np.ndarray, "key_dim dim"] | None = None,
    queries: Float[np.ndarray, "queries key_dim"] | None = None,
    target: float = RECALL_TARGET,
    memory_bytes: int | None = None,
    on_block: Callable[[int], None] | None = None,
) -> tuple[DenseIndex, IndexMeasurement | None]:
    """Build an index and tune it; "auto" chooses the fastest kind that fits and reaches the target.

    Args:
        keys, projection, on_block: as for `DenseIndex.build`.
        kind: a name in `DENSE_KINDS`, or "auto".
        queries, target: as for `tuned`.
        memory_bytes: memory limit of the keys when "auto" chooses; None for no limit.

    Raises:
        InvalidRequest, DimensionMismatch: as for `DenseIndex.build`; a target outside 0 to 1.
    """
    if not 0 < target <= 1:
        raise InvalidRequest(f"recall target {target}; use a number above 0, up to 1")
    dim = keys.shape[1] if projection is None else len(projection)
    best: tuple[DenseIndex, IndexMeasurement | None] | None = None
    for name in candidates_for(kind, len(keys), dim, memory_bytes):
        index = DenseIndex.build(keys, name, projection=projection, on_block=on_block)
        index, measured = tuned(index, keys, projection=projection, queries=queries, target=target)
        if measured is None or measured.recall_at_10 >= target:
            return index, measured
        if best is None or best[1] is None or measured.recall_at_10 > best[1].recall_at_10:
            best = index, measured
    assert best is not None  # at least one kind was tried
    return best


def sample_queries(
    keys: Float[np.ndarray, "documents dim"],
    projection: Float[np.ndarray, "key_dim dim"] | None = None,
    count: int = _QUERIES,
) -> Float32[np.ndarray, "queries key_dim"]:
    """Means of a few random keys; the same for equal keys."""
    some = np.sort(np.random.default_rng(0).integers(0, len(keys), (_MIXED, count)), axis=1)
    total = sum(projected(keys[rows], projection, "keys") for rows in some)
    return np.ascontiguousarray(total / np.float32(_MIXED))


def exact_neighbours(
    keys: Float[np.ndarray, "documents dim"],
    queries: Float32[np.ndarray, "queries key_dim"],
    projection: Float[np.ndarray, "key_dim dim"] | None = None,
) -> Int64[np.ndarray, "queries found"]:
    """The ten nearest keys of each query, by comparing all of them."""
    blocks = (
        (np.arange(i, min(i + _BLOCK, len(keys))), projected(keys[i : i + _BLOCK], projection, "keys"))
        for i in range(0, len(keys), _BLOCK)
    )
    return best_of_blocks(queries, blocks, RECALL_AT)[1]


def recall(
    index: DenseIndex,
    queries: Float32[np.ndarray, "queries key_dim"],
    truth: Int64[np.ndarray, "queries found"],
    exclude: np.ndarray | None = None,
) -> float:
    """Compute the share of the true neighbours among as many results of the index."""
    positions = index.search(queries, truth.shape[1], exclude)[1]
    hits = (positions[:, :, None] == truth[:, None, :]) & (truth[:, None, :] >= 0)
    return float(hits.sum() / (truth >= 0).sum())


def queries_per_s(index: DenseIndex, queries: Float32[np.ndarray, "queries key_dim"]) -> float:
    """Measure sequential searches for ten neighbours, fewer of an index without parameters."""
    index.search(queries[:1], RECALL_AT)  # warm-up
    most = _TIMED_QUERIES if index.parameters else _QUERIES_OF_EXACT
    started, count = time.perf_counter(), 0
    while count < most and time.perf_counter() - started < _TIMED_S:
        index.search(queries[count % len(queries)][None], RECALL_AT)
        count += 1
    return count / (time.perf_counter() - started)


def _search(index: DenseIndex, queries: np.ndarray, truth: np.ndarray, target: float) -> dict[str, int]:
    """Find the fastest parameters that reach the target, or those with the best recall.

    The main parameter (nprobe or ef_search) is the smallest that reaches it: doubled until it does, then
    bisected. If the kind has a k_factor, a few values of it are tried and the fastest pair is kept.
    """
    main = "ef_search" if "ef_search" in index.parameters else "nprobe"
    most = min(BOUNDS[main][1], index.lists or BOUNDS[main][1], max(len(index), 16))
    tried: list[tuple[dict[str, int], float]] = []

    def reaches(parameters: dict[str, int]) -> bool:
        tried.append((parameters, recall(index.using(parameters), queries, truth)))
        return tried[-1][1] >= target

    enough: list[dict[str, int]] = []
    for others in [{"k_factor": k} for k in (2, 4, 8, 16)] if "k_factor" in index.parameters else [{}]:
        low, high = 0, 1 if main == "nprobe" else 16
        while not reaches({main: high, **others}) and high < most:
            low, high = high, min(2 * high, most)
        if tried[-1][1] < target:
            continue
        while high - low > max(1, high // 16):
            middle = (low + high) // 2
            if reaches({main: middle, **others}):
                high = middle
            else:
                low = middle
        enough.append({main: high, **others})
    if not enough:
        best = max(recall for _, recall in tried)
        near = [parameters for parameters, recall in tried if recall >= best - _NEAR]
        return min(near, key=lambda parameters: parameters[main])
    if len(enough) == 1:
        return enough[0]
    return max(enough, key=lambda parameters: queries_per_s(index.using(parameters), queries))

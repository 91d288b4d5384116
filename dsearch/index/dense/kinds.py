"""Kinds of dense index by registered short names: the cost and the search parameters of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dsearch.errors import InvalidRequest

AUTO = "auto"
EXHAUSTIVE_BELOW = (
    20_000  # keys below which comparing all of them takes a few milliseconds: no index is needed
)

# Limits of a request: above them, a search costs more than comparing all keys.
BOUNDS = {"nprobe": (1, 65_536), "ef_search": (1, 4096), "k_factor": (1, 64)}


@dataclass(frozen=True, slots=True)
class DenseKind:
    """Kind of dense index.

    Attributes:
        factory: (number of keys, their length) → FAISS factory string.
        says: cost and recall in words, for `--help` and errors.
        bytes_per_key: length of a key → approximate number of bytes.
        parameters: search parameters and their values before tuning.
    """

    factory: Callable[[int, int], str]
    says: str
    bytes_per_key: Callable[[int], float] = lambda dim: 4.0 * dim
    parameters: Mapping[str, int] = field(default_factory=dict)


ROWS_PER_LIST = 39  # minimum number of training points per centre in FAISS


def lists_of(count: int) -> int:
    """Number of inverted lists for `count` keys: √n, more above 170,000 keys, 6 √n from a million on.

    With a million clustered keys in √n lists, half of them had to be searched for a recall of .97. 6 √n lists
    answer nine times as many queries and take seven times as long to build (`scripts/bench/approximate.py`).
    Few keys cannot train more centres; a scan is exact then and as fast.
    """
    share = min(6.0, max(1.0, 6 * count / 1_000_000))
    return min(round(share * math.sqrt(count)), count // ROWS_PER_LIST)


def _ivf(count: int, dim: int) -> str:
    return f"IVF{lists_of(count)},SQ8" if lists_of(count) > 1 else "SQ8"


def _ivfpq(count: int, dim: int) -> str:
    # 16 centres per sub-quantizer need 39 keys each.
    if count < 16 * 39:
        return "SQ8"
    return f"IVF{lists_of(count)},PQ{dim // 2 if dim % 2 == 0 else dim}x4fs,Refine(SQ8)"


DENSE_KINDS: dict[str, DenseKind] = {
    "Flat": DenseKind(lambda n, d: "Flat", "exact; 4 bytes a number"),
    "SQfp16": DenseKind(
        lambda n, d: "SQfp16", "scan of half-precision keys; 2 bytes a number", lambda d: 2 * d
    ),
    "SQbf16": DenseKind(lambda n, d: "SQbf16", "scan of bfloat16 keys; 2 bytes a number", lambda d: 2 * d),
    "SQ8": DenseKind(lambda n, d: "SQ8", "scan of 8-bit keys; 1 byte a number", lambda d: d),
    "HNSW": DenseKind(
        lambda n, d: "HNSW32,SQ8",
        "graph over 8-bit keys; approximate, sure on unusual queries, slow to build",
        lambda d: d + 280,
        {"ef_search": 128},
    ),
    "IVF": DenseKind(
        _ivf, "8-bit keys in sqrt(n) to 6 sqrt(n) lists; approximate", lambda d: d + 16, {"nprobe": 16}
    ),
    "IVFPQ": DenseKind(
        _ivfpq,
        "4-bit codes in sqrt(n) to 6 sqrt(n) lists, the best re-scored with 8-bit keys; approximate",
        lambda d: 1.25 * d + 16,
        {"nprobe": 16, "k_factor": 8},
    ),
}


def candidates_for(kind: str, count: int, dim: int, memory_bytes: int | None) -> list[str]:
    """Candidates for a requested kind: that kind, or for "auto" all that fit, the preferred first.

    If nothing fits into `memory_bytes`, the smallest kind is the candidate: its file is mapped, so it works.

    Raises:
        InvalidRequest: unknown kind, a budget below 1.
    """
    if memory_bytes is not None and memory_bytes < 1:
        raise InvalidRequest(f"memory_bytes={memory_bytes}; use a number of at least 1, or none for no bound")
    if kind != AUTO:
        if kind not in DENSE_KINDS:
            raise InvalidRequest(f"dense kind {kind!r}; use one of {', '.join([*DENSE_KINDS, AUTO])}")
        return [kind]
    names = ["Flat", "SQfp16", "SQ8"]
    if count >= EXHAUSTIVE_BELOW:
        names = ["IVFPQ", "IVF", "HNSW", "SQfp16", "SQ8"]
    fit = [
        name
        for name in names
        if memory_bytes is None or count * DENSE_KINDS[name].bytes_per_key(dim) <= memory_bytes
    ]
    return fit or ["SQ8"]


def checked_parameters(kind: str, parameters: Mapping[str, int] | None) -> dict[str, int]:
    """Check that the kind supports `parameters` and that they are within `BOUNDS`; None gives {}.

    Raises:
        InvalidRequest: a parameter that the kind does not take, or out of bounds.
    """
    takes = DENSE_KINDS[kind].parameters if kind in DENSE_KINDS else {}
    for name, value in (parameters or {}).items():
        if name not in takes:
            allowed = f"takes {', '.join(takes)}" if takes else "takes none"
            raise InvalidRequest(f"search parameter {name!r}; an index of kind {kind} {allowed}")
        least, most = BOUNDS[name]
        if type(value) is not int or not least <= value <= most:
            raise InvalidRequest(f"{name}={value!r}; use an integer from {least} to {most}")
    return dict(parameters or {})

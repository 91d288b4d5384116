"""Nearest keys by inner product: FAISS behind a small interface that is total at the edges.

What FAISS takes silently is refused here (NaN, infinities, a wrong dimension), and what it leaves open is
fixed: ties are broken by ascending position, k above the number of keys gives all of them, excluded positions
never appear.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from dsearch.errors import CorruptData, DimensionMismatch, InvalidRequest
from dsearch.index.checks import checked_exclude, checked_k

_faiss: Any = faiss  # its keyword arguments are added at run time, where no type checker sees them

_BLOCK = 8192  # rows that are projected, checked and added at a time
_TRAINING_ROWS = 65_536  # quantizers and coarse centres learn nothing more from more rows
_SCANNED_BELOW = (
    1024  # allowed keys below which comparing all of them is cheaper than walking a graph around them
)


@dataclass(frozen=True, slots=True)
class DenseKind:
    """A way to keep keys, by a registered short name.

    Attributes:
        factory: number of keys → FAISS factory string.
        says: what it costs and gives, for `--help` and errors.
    """

    factory: Callable[[int], str]
    says: str


def _ivf(count: int) -> str:
    # FAISS asks for at least 39 training points per centre; below that a scan is exact and as fast.
    lists = min(round(math.sqrt(count)), count // 39)
    return f"IVF{lists},SQ8" if lists > 1 else "SQ8"


DENSE_KINDS: dict[str, DenseKind] = {
    "Flat": DenseKind(lambda _: "Flat", "exact; 4 bytes a number"),
    "SQfp16": DenseKind(lambda _: "SQfp16", "scan of half-precision keys; 2 bytes a number"),
    "SQbf16": DenseKind(lambda _: "SQbf16", "scan of bfloat16 keys; 2 bytes a number"),
    "SQ8": DenseKind(lambda _: "SQ8", "scan of 8-bit keys; 1 byte a number"),
    "HNSW": DenseKind(lambda _: "HNSW32,SQ8", "graph over 8-bit keys; approximate, slow to build"),
    "IVF": DenseKind(_ivf, "8-bit keys in about sqrt(n) lists; approximate"),
}


class DenseIndex:
    """Keys of one generation, searched by inner product: immutable, safe to search from many threads.

    Make one with `build` or `load`. Positions count from 0 in the order of the keys.

    Attributes:
        kind: the registered name it was built as.
        key_dim: length of a key.
    """

    def __init__(self, index: faiss.Index, kind: str):
        self.kind = kind
        self.key_dim = int(index.d)
        self._owner = index  # downcast_index gives a pointer into it that keeps nothing alive
        self._index = faiss.downcast_index(index)

    @classmethod
    def build(
        cls,
        keys: Float[np.ndarray, "documents dim"],
        kind: str = "Flat",
        *,
        projection: Float[np.ndarray, "key_dim projected_dim"] | None = None,
        on_block: Callable[[int], None] | None = None,
    ) -> DenseIndex:
        """Index `keys`, or `keys @ projection.T` when a projection is given; n = 0 works.

        Reads the keys in blocks, so they may be a memory map larger than memory. `on_block` is told the
        number of keys added so far.

        Raises:
            InvalidRequest: unknown kind, keys that are not a matrix, NaN or infinity in the keys.
            DimensionMismatch: the projection does not take vectors of the keys' length.
        """
        if kind not in DENSE_KINDS:
            raise InvalidRequest(f"dense kind {kind!r}; use one of {', '.join(DENSE_KINDS)}")
        if keys.ndim != 2 or keys.shape[1] == 0:
            raise InvalidRequest(f"keys of shape {keys.shape}; use [documents, dim] with dim of at least 1")
        if projection is not None and (projection.ndim != 2 or projection.shape[1] != keys.shape[1]):
            raise DimensionMismatch(
                f"projection of shape {projection.shape}; for keys of length {keys.shape[1]} "
                f"use [key_dim, {keys.shape[1]}]"
            )
        count, key_dim = len(keys), keys.shape[1] if projection is None else len(projection)
        # Nothing can be learned from no keys: an empty index is a plain one, whatever it is called.
        factory = DENSE_KINDS[kind].factory(count) if count else "Flat"
        index = faiss.index_factory(key_dim, factory, faiss.METRIC_INNER_PRODUCT)
        if count and not index.is_trained:
            sample = np.unique(np.linspace(0, count - 1, min(count, _TRAINING_ROWS)).astype(np.int64))
            index.train(_projected(keys[sample], projection, "keys"))
        if isinstance(index, faiss.IndexHNSW):
            index.hnsw.efConstruction = 100
        for start in range(0, count, _BLOCK):
            index.add(_projected(keys[start : start + _BLOCK], projection, f"keys from {start} on"))
            if on_block is not None:
                on_block(min(start + _BLOCK, count))
        if isinstance(index, faiss.IndexIVF):
            index.make_direct_map()  # to read a key back by its position
        return cls(index, kind)

    def __len__(self) -> int:
        """The number of keys."""
        return int(self._index.ntotal)

    @property
    def exhaustive(self) -> bool:
        """Whether a search compares every stored key (Flat, SQ*): then only rounding loses a neighbour."""
        return isinstance(self._index, faiss.IndexFlat | faiss.IndexScalarQuantizer)

    def search(
        self,
        queries: Float[np.ndarray, "batch key_dim"],
        k: int,
        exclude: Bool[np.ndarray, " documents"] | None = None,
    ) -> tuple[Float32[np.ndarray, "batch k"], Int64[np.ndarray, "batch k"]]:
        """The k keys of highest inner product with each query: (scores, positions), best first.

        Ties are broken by ascending position; an approximate kind may not have seen all of a tie that k cuts.
        Where fewer than k keys are allowed, the rest of the row is score −inf, position −1. Positions where
        `exclude` is true are not found.

        Raises:
            InvalidRequest: k < 1, NaN or infinity in the queries, or `exclude` is not one boolean per key.
            DimensionMismatch: queries of another length than the keys.
        """
        k = checked_k(k)
        exclude = checked_exclude(exclude, len(self))
        if queries.ndim != 2:
            raise InvalidRequest(f"queries of shape {queries.shape}; use [batch, {self.key_dim}]")
        if queries.shape[1] != self.key_dim:
            raise DimensionMismatch(f"queries of length {queries.shape[1]}; the keys have {self.key_dim}")
        queries = _finite(queries, "queries")
        scores = np.full((len(queries), k), -np.inf, np.float32)
        positions = np.full((len(queries), k), -1, np.int64)
        allowed = len(self) - (0 if exclude is None else int(exclude.sum()))
        wanted = min(k, allowed)
        if wanted and len(queries):
            found = self._search_exhaustively if self.exhaustive else self._search_approximately
            scores[:, :wanted], positions[:, :wanted] = found(queries, wanted, allowed, exclude)
        return scores, positions

    def reconstruct(self, start: int, stop: int) -> Float32[np.ndarray, "range key_dim"]:
        """The stored keys from `start` up to `stop`: exact for Flat, as they were rounded for other kinds."""
        if not 0 <= start <= stop <= len(self):
            raise InvalidRequest(f"positions {start} to {stop}; use a range within 0 to {len(self)}")
        if start == stop:
            return np.zeros((0, self.key_dim), np.float32)
        return self._index.reconstruct_n(start, stop - start)

    def save(self, path: Path) -> None:
        """Write one FAISS file."""
        faiss.write_index(self._index, str(path))

    @classmethod
    def load(cls, path: Path, *, kind: str = "Flat", mmap: bool = False) -> DenseIndex:
        """Read what `save` wrote; with `mmap` keys stay on disk until used, shared between processes.

        FAISS reads most damaged files without an error: verify the file's digest first, as `Generation.open`
        does.

        Raises:
            CorruptData: FAISS cannot read the file, or it is not an inner-product index.
        """
        # The newer flag also maps flat and graph storage; FAISS before 1.11 has only the older one.
        flag = getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP) if mmap else 0
        try:
            index = faiss.read_index(str(path), flag)
        except RuntimeError as error:
            raise CorruptData(f"{path}: not a FAISS index ({error}); rebuild the generation") from error
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise CorruptData(
                f"{path}: metric {index.metric_type}, not inner product; rebuild the generation"
            )
        return cls(index, kind)

    def _search_exhaustively(
        self, queries: np.ndarray, wanted: int, allowed: int, exclude: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """FAISS cuts a tie at the last place anywhere: look one place further until the tie has ended."""
        scores = np.empty((len(queries), wanted), np.float32)
        positions = np.empty((len(queries), wanted), np.int64)
        rows, fetch = np.arange(len(queries)), min(wanted + 1, allowed)
        while len(rows):
            got_scores, got = _by_score_then_position(*self._faiss(queries[rows], fetch, exclude))
            scores[rows], positions[rows] = got_scores[:, :wanted], got[:, :wanted]
            if fetch == allowed:
                break
            rows = rows[got_scores[:, wanted - 1] == got_scores[:, -1]]
            fetch = min(2 * fetch + 64, allowed)
        return scores, positions

    def _search_approximately(
        self, queries: np.ndarray, wanted: int, allowed: int, exclude: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Walk the graph or the lists; where that finds fewer keys than there are, compare them all."""
        if allowed <= max(_SCANNED_BELOW, 2 * wanted):
            return self._scan(queries, wanted, exclude)
        try:
            scores, positions = _by_score_then_position(*self._faiss(queries, wanted, exclude))
        except RuntimeError:
            if exclude is None:
                raise
            return self._scan(queries, wanted, exclude)  # a kind that takes no selector
        short = np.flatnonzero((positions < 0).any(axis=1))
        if len(short):
            scores[short], positions[short] = self._scan(queries[short], wanted, exclude)
        return scores, positions

    def _faiss(
        self, queries: np.ndarray, k: int, exclude: np.ndarray | None
    ) -> tuple[Float32[np.ndarray, "batch k"], Int64[np.ndarray, "batch k"]]:
        selector = None
        if exclude is not None:
            selector = _faiss.IDSelectorBitmap(np.packbits(~exclude, bitorder="little"))
        if isinstance(self._index, faiss.IndexHNSW):
            parameters = _faiss.SearchParametersHNSW(sel=selector, efSearch=max(128, 2 * k))
        elif isinstance(self._index, faiss.IndexIVF):
            lists = self._index.nlist
            parameters = _faiss.SearchParametersIVF(sel=selector, nprobe=min(lists, max(16, lists // 8)))
        else:
            parameters = None if selector is None else _faiss.SearchParameters(sel=selector)
        return self._index.search(queries, k, params=parameters)

    def _scan(
        self, queries: np.ndarray, wanted: int, exclude: np.ndarray | None
    ) -> tuple[Float32[np.ndarray, "batch wanted"], Int64[np.ndarray, "batch wanted"]]:
        """Compare every allowed key, block by block, and keep the best."""
        scores = np.empty((len(queries), 0), np.float32)
        positions = np.empty((len(queries), 0), np.int64)
        for start in range(0, len(self), _BLOCK):
            stop = min(start + _BLOCK, len(self))
            here = np.arange(start, stop)
            if exclude is not None:
                here = here[~exclude[start:stop]]
            if len(here) == 0:
                continue
            keys = self.reconstruct(start, stop)[here - start]
            scores = np.concatenate([scores, queries @ keys.T], axis=1)
            positions = np.concatenate([positions, np.broadcast_to(here, (len(queries), len(here)))], axis=1)
            scores, positions = _by_score_then_position(scores, positions)
            scores, positions = scores[:, :wanted], positions[:, :wanted]
        return scores, positions


def set_thread_count(threads: int) -> None:
    """How many threads FAISS may use in this process; it takes all cores until told otherwise."""
    if threads < 1:
        raise InvalidRequest(f"threads={threads}; use an integer of at least 1")
    faiss.omp_set_num_threads(threads)


def _by_score_then_position(
    scores: Float32[np.ndarray, "batch k"], positions: Int64[np.ndarray, "batch k"]
) -> tuple[Float32[np.ndarray, "batch k"], Int64[np.ndarray, "batch k"]]:
    order = np.lexsort((positions, -scores), axis=-1)
    return np.take_along_axis(scores, order, -1), np.take_along_axis(positions, order, -1)


def _projected(
    rows: Float[np.ndarray, "rows dim"], projection: Float[np.ndarray, "key_dim dim"] | None, what: str
) -> Float32[np.ndarray, "rows key_dim"]:
    if projection is not None:
        rows = np.asarray(rows, np.float32) @ np.asarray(projection, np.float32).T
    return _finite(rows, what)


def _finite(array: Float[np.ndarray, "rows dim"], what: str) -> Float32[np.ndarray, "rows dim"]:
    array = np.ascontiguousarray(array, np.float32)
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        raise InvalidRequest(f"{what}: NaN or infinity in row {int(np.argmin(finite))}; give finite numbers")
    return array

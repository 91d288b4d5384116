"""Nearest keys by inner product: FAISS behind a small interface with defined edge cases.

Inputs that FAISS accepts silently are rejected here: NaN, infinities, a wrong dimension. Results that it
leaves undefined are fixed: ties are broken by ascending position, a k above the number of keys returns all of
them, excluded positions never appear.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from jaxtyping import Bool, Float, Float32, Int8, Int64

from dsearch.errors import CorruptData, DimensionMismatch, InvalidRequest
from dsearch.index.dense.kinds import BOUNDS, DENSE_KINDS, ROWS_PER_LIST, checked_parameters, lists_of
from dsearch.index.exact import best_of_blocks, by_score_then_position, longest_of
from dsearch.index.validation import checked_exclude, checked_k, finite, projected

_faiss: Any = faiss  # its keyword arguments are added at run time, unknown to type checkers

_BLOCK = 8192  # rows that are projected, checked and added at a time
_TRAINING_ROWS = 65_536  # enough for quantizers; many lists need more
_CHUNK = 1 << 20  # bytes
# Number of queries from which a Flat index is searched by matrix products; FAISS compares pair by pair, and
# from 20 queries multiplies small blocks. Over 200,000 × 384 in one thread it took .8 of the products' time
# for 4 queries, 1.5 for 8, 2.8 for 16 and 5.3 for 64 (`scripts/bench/exact.py`).
_PRODUCTS_FROM = 8
# Number of keys from which products are used: rescoring their choice has a fixed cost. With 10,000 keys FAISS
# takes .5 of the time for 8 queries and the same for 64, with 1,000 keys a sixth for both.
_PRODUCTS_KEYS = 20_000
_PRODUCTS = 1 << 20  # scores at a time
_READ_BELOW = 1024  # allowed keys up to which reading and comparing them is cheaper than a selector
# Share of allowed keys up to which all of them are compared, by a selector. With fewer, the nearest lie
# beyond the lists or the part of the graph that a search visits: on 150,000 clustered keys recall@10 was .99
# at a tenth, .98 at a twentieth and .5 to .7 at a fiftieth; comparing all took 5, 2.5 and 1 ms.
_SCANNED_SHARE = 0.1
# A graph search reads about 32 keys (its links) for each unit of ef_search, in random order, which takes
# twice as long. Up to that many allowed keys, comparing all of them is faster and exact. On 50,000 keys of
# 384 numbers with a fifth allowed it was 184 queries/s to 54 (`scripts/bench/filters.py`).
_COMPARED_PER_STEP = 64
_SETTINGS = 256  # of FAISS that are kept


class DenseIndex:
    """Keys of one generation, searched by inner product: immutable, safe to search from many threads.

    Create one with `build` or `load`. Positions count from 0 in the order of the keys.

    Attributes:
        kind: registered name of its kind.
        key_dim: length of a key.
        parameters: default search parameters, within `BOUNDS`.
    """

    def __init__(self, index: faiss.Index, kind: str, parameters: Mapping[str, int] | None = None):
        defaults = DENSE_KINDS[kind].parameters if kind in DENSE_KINDS else {}
        self.kind = kind
        self.key_dim = int(index.d)
        self.parameters = {**defaults, **checked_parameters(kind, parameters)}
        self._owner = index  # downcast_index returns a pointer that does not own it
        self._index: Any = faiss.downcast_index(index)
        # The stored keys: behind a graph, or those of the second stage, which are more precise.
        self._stored: Any = self._index
        self._ivf: Any = self._index if isinstance(self._index, faiss.IndexIVF) else None
        if isinstance(self._index, faiss.IndexRefine):
            self._stored = faiss.downcast_index(self._index.refine_index)
            self._ivf = faiss.downcast_index(self._index.base_index)
        elif isinstance(self._index, faiss.IndexHNSW):
            self._stored = faiss.downcast_index(self._index.storage)
        self._longest: float | None = None  # length of the longest key, computed on demand
        self._settings: dict[
            tuple[tuple[str, int], ...], Any
        ] = {}  # of FAISS, which takes .1 ms to make them

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

        Reads the keys in blocks, so they may be a memory map larger than memory. `on_block` is called with
        the number of keys added so far.

        Raises:
            InvalidRequest: unknown kind, keys that are not a matrix, NaN or infinity in the keys.
            DimensionMismatch: the projection does not fit the keys.
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
        # Without keys there is nothing to train: an empty index is a plain one of any kind.
        factory = DENSE_KINDS[kind].factory(count, key_dim) if count else "Flat"
        index = faiss.index_factory(key_dim, factory, faiss.METRIC_INNER_PRODUCT)
        if count and not index.is_trained:
            rows = min(count, max(_TRAINING_ROWS, ROWS_PER_LIST * lists_of(count)))
            sample = np.unique(np.linspace(0, count - 1, rows).astype(np.int64))
            index.train(projected(keys[sample], projection, "keys"))
        if isinstance(index, faiss.IndexHNSW):
            index.hnsw.efConstruction = 100
        for start in range(0, count, _BLOCK):
            index.add(projected(keys[start : start + _BLOCK], projection, f"keys from {start} on"))
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
        """True if a search compares every stored key (Flat, SQ*), so only rounding can miss a neighbour."""
        return isinstance(self._index, faiss.IndexFlat | faiss.IndexScalarQuantizer)

    def search(
        self,
        queries: Float[np.ndarray, "batch key_dim"],
        k: int,
        exclude: Bool[np.ndarray, " documents"] | None = None,
        parameters: Mapping[str, int] | None = None,
    ) -> tuple[Float32[np.ndarray, "batch k"], Int64[np.ndarray, "batch k"]]:
        """Return the k keys of highest inner product with each query: (scores, positions), best first.

        Ties are broken by ascending position; an approximate kind may miss part of a tie that k cuts. With
        fewer than k allowed keys, the row is padded with score −inf, position −1. Positions where `exclude`
        is True are omitted: an approximate kind compares all allowed keys if they are few (up to a tenth),
        and otherwise searches further and skips the excluded ones.

        `parameters` (nprobe, ef_search, k_factor, as the kind supports) override those of the index for this
        call.

        Raises:
            InvalidRequest: k < 1, NaN or infinity in the queries, `exclude` is not one boolean per key, or a
                parameter that the kind does not take or that is out of `BOUNDS`.
            DimensionMismatch: queries of another length than the keys.
        """
        k = checked_k(k)
        parameters = {**self.parameters, **checked_parameters(self.kind, parameters)}
        exclude = checked_exclude(exclude, len(self))
        queries = self._checked(queries)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        positions = np.full((len(queries), k), -1, np.int64)
        allowed = len(self) - (0 if exclude is None else int(exclude.sum()))
        wanted = min(k, allowed)
        if wanted and len(queries):
            if self.exhaustive:
                results = self._search_exhaustively(queries, wanted, allowed, exclude)
            else:
                results = self._search_approximately(queries, wanted, allowed, exclude, parameters)
            scores[:, :wanted], positions[:, :wanted] = results
        return scores, positions

    def nearest(
        self, queries: Float32[np.ndarray, "batch key_dim"], k: int, parameters: Mapping[str, int]
    ) -> Int64[np.ndarray, "batch k"]:
        """Return positions of `search` alone, of an approximate kind, for queries that are finite.

        Checks and orders nothing, which saves a third of the time of a single query: few probed keys leave
        −1 behind, and equal scores come in any order.
        """
        if self._ivf is None or len(self) <= _READ_BELOW:
            return self.search(queries, k)[1]
        return self._faiss(queries, k, None, parameters)[1]

    def scores(
        self, queries: Float32[np.ndarray, "batch key_dim"]
    ) -> Float32[np.ndarray, "batch documents"] | None:
        """Compute the inner product of each query with every key, bit for bit as in `search`.

        Allocates the whole matrix. Returns None for a kind with rounded keys, or with lists.

        Raises:
            InvalidRequest: NaN or infinity in the queries.
            DimensionMismatch: queries of another length than the keys.
        """
        if not isinstance(self._index, faiss.IndexFlat):
            return None
        queries = self._checked(queries)
        scores = np.empty((len(queries), len(self)), np.float32)
        if len(self):
            keys = self._index.get_xb()
            for query, line in zip(queries, scores, strict=True):
                _faiss.fvec_inner_products_ny(
                    _faiss.swig_ptr(line), _faiss.swig_ptr(query), keys, self.key_dim, len(self)
                )
        return scores

    @property
    def lists(self) -> int | None:
        """Number of lists, the maximum of nprobe; None for a kind without lists."""
        return None if self._ivf is None else int(self._ivf.nlist)

    def stored_bytes(self) -> int:
        """Size of the file that `save` writes."""
        written = 0

        def count(chunk: bytes) -> int:
            nonlocal written
            written += len(chunk)
            return len(chunk)

        writer = _faiss.PyCallbackIOWriter(count, _CHUNK)
        faiss.write_index(self._index, writer)
        del writer  # flushes its buffer
        return written

    def save(self, path: Path) -> None:
        """Write one FAISS file; raises OSError."""
        try:
            faiss.write_index(self._index, str(path))
        except RuntimeError as error:  # FAISS's words for an error of the disk
            full = os.strerror(errno.ENOSPC) in str(error)
            reason = str(error).strip().splitlines()[-1][:200]
            raise OSError(errno.ENOSPC if full else errno.EIO, reason, str(path)) from error

    def using(self, parameters: Mapping[str, int]) -> DenseIndex:
        """Return an index of the same keys with other search parameters.

        Raises:
            InvalidRequest: a parameter that the kind does not take, or out of bounds.
        """
        return DenseIndex(self._owner, self.kind, {**self.parameters, **parameters})

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        kind: str = "Flat",
        parameters: Mapping[str, int] | None = None,
        mmap: bool = False,
    ) -> DenseIndex:
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
            raise CorruptData(f"{path}: not a FAISS index ({error}); build the generation again") from error
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise CorruptData(
                f"{path}: metric {index.metric_type}, not inner product; build the generation again"
            )
        return cls(index, kind, parameters)

    def _checked(self, queries: Float[np.ndarray, "batch key_dim"]) -> Float32[np.ndarray, "batch key_dim"]:
        if queries.ndim != 2:
            raise InvalidRequest(f"queries of shape {queries.shape}; use [batch, {self.key_dim}]")
        if queries.shape[1] != self.key_dim:
            raise DimensionMismatch(f"queries of length {queries.shape[1]}; the keys have {self.key_dim}")
        return finite(queries, "queries")

    def _search_exhaustively(
        self, queries: np.ndarray, wanted: int, allowed: int, exclude: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compare all allowed keys. FAISS cuts ties arbitrarily: fetch more until the tie ends."""
        if len(queries) >= _PRODUCTS_FROM and isinstance(self._stored, faiss.IndexFlat):
            if len(self) >= _PRODUCTS_KEYS:
                return self._search_by_products(queries, wanted, exclude)
            # In small batches: from 20 queries FAISS multiplies matrices, where equal keys need not tie.
            few = range(0, len(queries), _PRODUCTS_FROM - 1)
            parts = [queries[start : start + _PRODUCTS_FROM - 1] for start in few]
            results = (self._search_exhaustively(part, wanted, allowed, exclude) for part in parts)
            all_scores, all_positions = zip(*results, strict=True)
            return np.concatenate(all_scores), np.concatenate(all_positions)
        scores = np.empty((len(queries), wanted), np.float32)
        positions = np.empty((len(queries), wanted), np.int64)
        rows, fetch = np.arange(len(queries)), min(wanted + 1, allowed)
        while len(rows):
            got_scores, got = by_score_then_position(*self._faiss(queries[rows], fetch, exclude, None))
            scores[rows], positions[rows] = got_scores[:, :wanted], got[:, :wanted]
            if fetch == allowed:
                break
            rows = rows[got_scores[:, wanted - 1] == got_scores[:, -1]]
            fetch = min(2 * fetch + 64, allowed)
        return scores, positions

    def _search_by_products(
        self, queries: np.ndarray, wanted: int, exclude: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compare all allowed keys for many queries, without copying the keys."""
        keys = _faiss.rev_swig_ptr(self._stored.get_xb(), len(self) * self.key_dim).reshape(len(self), -1)
        if self._longest is None:
            self._longest = max(longest_of(keys[i : i + _BLOCK]) for i in range(0, len(self), _BLOCK))
        size = min(max(_PRODUCTS // len(queries), 1024), 16_384)

        def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for start in range(0, len(self), size):
                here = np.arange(start, min(start + size, len(self)))
                if exclude is None or not exclude[here].any():
                    yield here, keys[start : start + size]
                else:
                    here = here[~exclude[here]]
                    yield here, keys[here]

        return best_of_blocks(queries, blocks(), wanted, self._longest)

    def _search_approximately(
        self,
        queries: np.ndarray,
        wanted: int,
        allowed: int,
        exclude: np.ndarray | None,
        parameters: Mapping[str, int],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Search the graph or the lists; if that returns too few keys, compare all."""
        if allowed <= max(_READ_BELOW, 2 * wanted):
            return self._scan(queries, wanted, exclude)
        if exclude is not None:
            if allowed <= _SCANNED_SHARE * len(self):
                return self._search_exhaustively(queries, wanted, allowed, exclude)
            parameters = self._widened(parameters, allowed)
            if allowed <= _COMPARED_PER_STEP * parameters.get("ef_search", 0):
                return self._search_exhaustively(queries, wanted, allowed, exclude)
        scores, positions = by_score_then_position(*self._faiss(queries, wanted, exclude, parameters))
        short = np.flatnonzero((positions < 0).any(axis=1))
        if len(short):
            scores[short], positions[short] = self._scan(queries[short], wanted, exclude)
        return scores, positions

    def _widened(self, parameters: Mapping[str, int], allowed: int) -> dict[str, int]:
        """Search further if few keys are allowed: the nearest of them are farther away."""
        share = len(self) / allowed
        grown = {"nprobe": math.sqrt(share), "ef_search": share, "k_factor": 1.0}
        return {
            name: min(math.ceil(value * grown[name]), max(value, BOUNDS[name][1]))
            for name, value in parameters.items()
        }

    def _faiss(
        self, queries: np.ndarray, k: int, exclude: np.ndarray | None, parameters: Mapping[str, int] | None
    ) -> tuple[Float32[np.ndarray, "batch k"], Int64[np.ndarray, "batch k"]]:
        """Run the search of FAISS; without parameters compare every allowed key."""
        selector = None
        if exclude is not None:
            selector = _faiss.IDSelectorBitmap(np.packbits(~exclude, bitorder="little"))
        if parameters is None:
            if isinstance(self._stored, faiss.IndexIVF):
                settings = _faiss.SearchParametersIVF(sel=selector, nprobe=self.lists)
            else:
                settings = None if selector is None else _faiss.SearchParameters(sel=selector)
            return self._stored.search(queries, k, params=settings)
        key = (*sorted(parameters.items()), ("k", k))
        settings = self._settings.get(key) if selector is None else None
        if settings is None:
            settings = self._settings_of(k, parameters, selector)
            if selector is None and len(self._settings) < _SETTINGS:
                self._settings[key] = settings
        return self._index.search(queries, k, params=settings)

    def _settings_of(self, k: int, parameters: Mapping[str, int], selector: Any) -> Any:
        """Search parameters as FAISS takes them."""
        if self._ivf is None:
            return _faiss.SearchParametersHNSW(sel=selector, efSearch=max(parameters["ef_search"], 2 * k))
        nprobe = min(self._ivf.nlist, parameters["nprobe"])
        settings = _faiss.SearchParametersIVF(sel=selector, nprobe=nprobe)
        if self._ivf is self._index:
            return settings
        # The selector applies to the first stage.
        k_factor = parameters["k_factor"]
        return _faiss.IndexRefineSearchParameters(k_factor=k_factor, base_index_params=settings)

    def _scan(
        self, queries: np.ndarray, wanted: int, exclude: np.ndarray | None
    ) -> tuple[Float32[np.ndarray, "batch wanted"], Int64[np.ndarray, "batch wanted"]]:
        """Compare every allowed key, block by block, and keep the best."""
        allowed = np.arange(len(self)) if exclude is None else np.flatnonzero(~exclude)
        blocks = (
            (allowed[i : i + _BLOCK], self._stored.reconstruct_batch(allowed[i : i + _BLOCK]))
            for i in range(0, len(allowed), _BLOCK)
        )
        return best_of_blocks(queries, blocks, wanted)


SPARE = 32  # keys beyond those that are asked for


class ScannedKeys:
    """The thousands of keys of a query memory, in 8 bits; immutable, safe to search from many threads.

    Codes have one unit for all keys, unlike those of the memory, whose rows have one each: so products of
    whole numbers order the keys. Keys and queries are rounded; a search returns some keys more than it was
    asked for, and the caller compares them exactly. 10,000 keys of 384 numbers are 4 MB, whose scan takes
    some .6 of the time of 4-bit codes in lists with their best scored again, and misses none.

    Args:
        codes: keys as whole numbers.
        scales: the unit of each.
    """

    def __init__(self, codes: Int8[np.ndarray, "keys dim"], scales: Float32[np.ndarray, " keys"]):
        kind = faiss.ScalarQuantizer.QT_8bit_direct_signed
        self._index: Any = faiss.IndexScalarQuantizer(codes.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
        shares = (scales / (scales.max(initial=0.0) or 1.0)).astype(np.float32)
        for start in range(0, len(codes), _BLOCK):
            block = slice(start, start + _BLOCK)
            self._index.add(np.rint(codes[block] * shares[block, None]))

    def __len__(self) -> int:
        """Number of keys."""
        return int(self._index.ntotal)

    def __deepcopy__(self, _: Any) -> ScannedKeys:
        return self  # immutable

    def nearest(
        self, queries: Float32[np.ndarray, "batch dim"], count: int
    ) -> Int64[np.ndarray, "batch found"]:
        """Numbers of the `count` keys with the largest products, but for rounding, and of some more."""
        largest = np.abs(queries).max(axis=1, keepdims=True, initial=0.0)
        whole = np.rint(queries * (127 / np.where(largest > 0, largest, 1)))  # FAISS cuts fractions off
        most = min(count + SPARE, len(self))
        return self._index.search(whole.astype(np.float32), most)[1]

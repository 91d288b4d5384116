"""Validate the inputs of a build before use, and stream those that may be larger than memory.

The dense and the keyword index share these checks, so both accept the same inputs.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from dsearch.errors import DimensionMismatch, InvalidRequest, amount

Report: TypeAlias = Callable[[str, int, int], None]  # stage, done, total

_PROGRESS_EVERY = 1000  # texts


def checked_rows(rows: np.ndarray) -> Int64[np.ndarray, " documents"]:
    """`rows` as int64; InvalidRequest unless they are integers, strictly ascending from 0 on."""
    rows = np.asarray(rows)
    if rows.ndim != 1 or (rows.size and not np.issubdtype(rows.dtype, np.integer)):
        raise InvalidRequest(f"rows of type {rows.dtype} and shape {rows.shape}; use a list of integers")
    rows = rows.astype(np.int64)
    if rows.size and (rows[0] < 0 or (np.diff(rows) <= 0).any()):
        raise InvalidRequest("rows are not strictly ascending from 0 on; sort them, each once")
    return rows


def checked_identity(number: int, sequence: int, encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Check and normalise the encoder's identity; InvalidRequest if it or a number cannot be stored."""
    if number < 1 or sequence < 0:
        raise InvalidRequest(f"number={number}, sequence={sequence}; use a number from 1, a sequence from 0")
    try:
        return dict(json.loads(json.dumps(dict(encoder), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"encoder={encoder!r}; use what JSON can hold ({error})") from error


def checked_projection(
    projection: np.ndarray | None, encoder_dim: int
) -> Float32[np.ndarray, "key_dim encoder_dim"] | None:
    """Return W_g as float32, None for the identity; raises DimensionMismatch or InvalidRequest."""
    if projection is None:
        return None
    projection = np.ascontiguousarray(projection, np.float32)
    if projection.ndim != 2 or projection.shape[1] != encoder_dim or len(projection) == 0:
        raise DimensionMismatch(f"key_projection of shape {projection.shape}; use [key_dim, {encoder_dim}]")
    if not np.isfinite(projection).all():
        raise InvalidRequest("key_projection holds NaN or infinity; give finite numbers")
    return None if np.array_equal(projection, np.eye(encoder_dim, dtype=np.float32)) else projection


def write_blocks(
    path: Path,
    embeddings: np.ndarray | Iterable[np.ndarray],
    count: int,
    report: Report,
    further: Iterable[np.ndarray] = (),
) -> int:
    """Write embeddings.npy block by block, `count` rows, then the further ones; return an embedding's length.

    A writable memory map is not used: on a full disk it kills the process instead of raising an error.
    """
    blocks = _blocks(embeddings)
    first = next(blocks, None)
    if first is None:
        raise InvalidRequest("no block of embeddings; give one of shape [0, encoder_dim] for no documents")
    dim, done = first.shape[1], 0
    with path.open("wb") as file:
        _write_header(file, count, dim)
        for block in chain([first], blocks):
            checked = _checked_block(block, dim, done)
            done += len(block)
            if done > count:
                break
            file.write(checked)
            report("embeddings", done, count)
        if done != count:
            raise InvalidRequest(f"{done} or more embeddings for {amount(count, 'row')}; give one per row")
        for block in _blocks(further):
            file.write(_checked_block(block, dim, done))
            done += len(block)
        if done > count:  # NumPy reserves space in the header for a larger number of rows
            file.seek(0)
            _write_header(file, done, dim)
    return dim


def _write_header(file: BinaryIO, count: int, dim: int) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, dim)}
    np.lib.format.write_array_header_1_0(file, header)


def _checked_block(block: np.ndarray, dim: int, done: int) -> memoryview:
    if block.shape[1] != dim:
        raise DimensionMismatch(f"a block of embeddings of length {block.shape[1]} after {dim}")
    if not np.isfinite(block).all():
        raise InvalidRequest(f"embeddings: NaN or infinity in rows {done} to {done + len(block) - 1}")
    return np.ascontiguousarray(block, "<f4").data


def counted(texts: Iterable[str], count: int, report: Report) -> Iterator[str]:
    """Yield exactly `count` texts, or raise an error; stops reading after one text too many."""
    done = 0
    for done, text in enumerate(islice(texts, count + 1), start=1):
        if done > count:
            break
        yield text
        if done % _PROGRESS_EVERY == 0 or done == count:
            report("keyword", done, count)
    if done != count:
        more = "more than " if done > count else ""
        raise InvalidRequest(
            f"{more}{amount(min(done, count), 'text')} for {amount(count, 'row')}; give one per row"
        )


def projected(
    rows: Float[np.ndarray, "rows dim"], projection: Float[np.ndarray, "key_dim dim"] | None, what: str
) -> Float32[np.ndarray, "rows key_dim"]:
    """Return `rows`, or `rows @ projection.T`, as finite float32; `what` names them in errors."""
    if projection is not None:
        rows = np.asarray(rows, np.float32) @ np.asarray(projection, np.float32).T
    return finite(rows, what)


def finite(array: Float[np.ndarray, "rows dim"], what: str) -> Float32[np.ndarray, "rows dim"]:
    """`array` as contiguous float32; InvalidRequest when a number in it is NaN or infinite."""
    array = np.ascontiguousarray(array, np.float32)
    finite = np.isfinite(array)
    if not finite.all():
        row = int(np.argmin(finite.all(axis=1)))
        raise InvalidRequest(f"{what}: NaN or infinity in row {row}; give finite numbers")
    return array


def _blocks(embeddings: np.ndarray | Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    if isinstance(embeddings, np.ndarray):
        step = 8192
        embeddings = [embeddings[i : i + step] for i in range(0, max(len(embeddings), 1), step)]
    for block in embeddings:
        block = np.asarray(block)
        if block.ndim != 2 or block.shape[1] == 0:
            raise InvalidRequest(f"embeddings of shape {block.shape}; use [documents, encoder_dim]")
        yield block


def open_matrix(path: Path) -> np.ndarray:
    """Open a read-only memory map, or an empty array for an empty file."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:  # an empty file region cannot be mapped
        array = np.load(path, allow_pickle=False)
        array.flags.writeable = False
        return array


def checked_k(k: int) -> int:
    """Raise InvalidRequest unless `k` is an integer of at least 1."""
    try:
        number = operator.index(k)
    except TypeError:
        number = 0
    if number < 1:
        raise InvalidRequest(f"k={k!r}; use an integer of at least 1")
    return number


def checked_exclude(
    exclude: Bool[np.ndarray, " documents"] | None, documents: int
) -> Bool[np.ndarray, " documents"] | None:
    """Check that `exclude` is one boolean per document; return None if it excludes nothing.

    Raises:
        InvalidRequest: another type or length.
    """
    if exclude is None:
        return None
    exclude = np.asarray(exclude)
    if exclude.dtype != np.bool_ or exclude.shape != (documents,):
        raise InvalidRequest(
            f"exclude of type {exclude.dtype} and shape {exclude.shape}; use booleans of shape ({documents},)"
        )
    return exclude if exclude.any() else None

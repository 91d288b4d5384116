# pyright: basic, reportMissingImports=false, reportIndexIssue=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
"""Triton kernels of exact search: maxima of groups of keys, then the scores of the best groups alone.

The matrix of scores is never written. A *tile* is `KEYS` successive keys, a *block* of it 8 · PAIRS, and a
*group* the 2 · PAIRS keys of a block that one thread holds after a matrix product:

    group (4a + t) = rows 8 · PAIRS · a + 8j + 2t + e     j = 0 … PAIRS − 1, t = 0 … 3, e = 0, 1

so that its maximum costs no exchange between threads. Launched, and proved exact, by card.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

DIMS = 64  # columns of a tile; 128 bytes of halves, which the copy engine lays out without bank conflicts
SCORED_KEYS, SCORED_ROWS = 128, 64
LISTED = 1024  # groups that a program looks at together; a multiple of those of a tile

NOTHING = tl.constexpr(-(2**63) + 1)  # below every ordered score


@triton.jit
@no_type_check
def _group_maxima(
    query_tiles,
    key_tiles,
    maxima,
    tile_maxima,
    batch,
    documents,
    row_tiles,
    tiles_each,
    maxima_stride,
    tile_maxima_stride,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DIMS: tl.constexpr,
    CHUNKS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Write the largest score of each query in each group of keys, and in each tile.

    A program takes `ROWS` queries and `tiles_each` tiles. Programs of the same tiles are neighbours, so that
    their keys are read from memory once.
    """
    program = tl.program_id(0)
    row = (program % row_tiles) * ROWS
    first = (program // row_tiles) * tiles_each
    last = tl.minimum(first + tiles_each, tl.cdiv(documents, KEYS))
    rows = row + tl.arange(0, ROWS)
    real = rows < batch
    GROUPS: tl.constexpr = KEYS // (2 * PAIRS)
    # One flat loop: the keys of the next tile are on their way while the maxima of this one are taken.
    for tile in tl.range(first, last, flatten=True):
        scores = tl.zeros([ROWS, KEYS], tl.float32)
        for chunk in tl.range(0, CHUNKS):
            queries = query_tiles.load([row, chunk * DIMS])
            keys = key_tiles.load([tile * KEYS, chunk * DIMS])
            scores = tl.dot(queries, keys.T, scores, input_precision="ieee")
        inside = tile * KEYS + tl.arange(0, KEYS) < documents
        scores = tl.where(inside[None, :], scores, float("-inf"))
        best = tl.max(tl.reshape(scores, [ROWS, KEYS // (8 * PAIRS), PAIRS, 4, 2]), axis=4)
        best = tl.reshape(tl.max(best, axis=2), [ROWS, GROUPS])
        at = rows[:, None].to(tl.int64) * maxima_stride + tile * GROUPS + tl.arange(0, GROUPS)[None, :]
        tl.store(maxima + at, best, mask=real[:, None])
        at = rows.to(tl.int64) * tile_maxima_stride + tile
        tl.store(tile_maxima + at, tl.max(best, axis=1), mask=real)


@triton.jit
@no_type_check
def _rising(scores):
    """Integers in the order of these floats; −0 and 0 are one."""
    bits = (scores + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
@no_type_check
def _groups_of(maxima, tiles, start, wanted, GROUPS: tl.constexpr, TILES: tl.constexpr):
    """Groups of `TILES` chosen tiles from `start` on, their maxima in order, and which of them there are."""
    place = start + tl.arange(0, TILES)
    tile = tl.load(tiles + place, mask=place < wanted, other=0).to(tl.int32)
    group = tile[:, None] * GROUPS + tl.arange(0, GROUPS)[None, :]
    valid = tl.broadcast_to((place < wanted)[:, None], [TILES, GROUPS])
    best = tl.load(maxima + group, mask=valid, other=float("-inf"))
    return group, _rising(best), valid


@triton.jit
@no_type_check
def _count(maxima, tiles, wanted, least, GROUPS: tl.constexpr, TILES: tl.constexpr):
    """Groups of the chosen tiles that reach `least`."""
    count = 0
    for start in range(0, wanted, TILES):
        _, best, valid = _groups_of(maxima, tiles, start, wanted, GROUPS, TILES)
        count += tl.sum(tl.reshape(((best >= least) & valid).to(tl.int32), [TILES * GROUPS]), 0)
    return count


@triton.jit
@no_type_check
def _best_keys(
    queries,
    keys,
    maxima,
    best_tiles,
    tiles,
    groups,
    counts,
    ordered,
    scores_out,
    rows_out,
    unsure,
    flags,
    documents,
    dim,
    query_stride,
    key_stride,
    maxima_stride,
    wanted,
    capacity,
    GROUPS: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DIMS: tl.constexpr,
    CHUNKS: tl.constexpr,
    PAIRS: tl.constexpr,
    WIDTH: tl.constexpr,
    GIVEN: tl.constexpr,
    SORTED: tl.constexpr,
):
    """Write the best keys of a query: list the groups that matter, score their keys again, sort.

    If GIVEN is false, groups are those of the best tiles whose maximum reaches that of the last of these
    tiles, or, if they are more than `capacity`, the highest threshold that `wanted` groups reach. `unsure`
    marks a query for which this was not enough. The first of `flags` is set if any query is unsure, the
    second if a sum differs from the first pass. If SORTED is false, only `ordered` is written: one integer
    per key, ordered by score and then row.
    """
    query = tl.program_id(0).to(tl.int64)
    maxima += query * maxima_stride
    groups += query * capacity
    ordered += query * WIDTH
    GROUP: tl.constexpr = 2 * PAIRS
    if GIVEN:
        count = tl.load(counts + query)
    else:
        best_tiles += query * (wanted + 1)
        tiles += query * (wanted + 1)
        least = _rising(tl.load(best_tiles + wanted - 1))
        doubtful = least == _rising(tl.load(best_tiles + wanted))
        count = _count(maxima, tiles, wanted, least, GROUPS, TILES)
        if count > capacity:
            low = least.to(tl.int64)
            high = _rising(tl.load(best_tiles)).to(tl.int64)
            while low < high:
                middle = low + (high - low + 1) // 2
                if _count(maxima, tiles, wanted, middle.to(tl.int32), GROUPS, TILES) >= wanted:
                    low = middle
                else:
                    high = middle - 1
            least = low.to(tl.int32)
        count = 0
        for start in range(0, wanted, TILES):
            group, best, valid = _groups_of(maxima, tiles, start, wanted, GROUPS, TILES)
            taken = tl.reshape(((best >= least) & valid).to(tl.int32), [TILES * GROUPS])
            at = count + tl.cumsum(taken, 0) - taken
            tl.store(groups + at, tl.reshape(group, [TILES * GROUPS]), mask=(taken > 0) & (at < capacity))
            count += tl.sum(taken, 0)
        doubtful = doubtful | (count > capacity)
        tl.store(unsure + query, doubtful.to(tl.int32))
        if doubtful:
            tl.store(flags, 1)
        count = tl.minimum(count, capacity)
        tl.debug_barrier()  # the list was written by other threads than read it
    for start in range(0, count * GROUP, KEYS):
        place = start + tl.arange(0, KEYS)
        listed = place < count * GROUP
        group = tl.load(groups + place // GROUP, mask=listed, other=0)
        member = place % GROUP
        row = (group // 4) * (4 * GROUP) + (member // 2) * 8 + (group % 4) * 2 + member % 2
        valid = listed & (row < documents)
        scores = tl.zeros([ROWS, KEYS], tl.float32)
        for chunk in range(CHUNKS):
            dims = chunk * DIMS + tl.arange(0, DIMS)
            inside = (dims < dim)[None, :]
            # The matrix unit takes `ROWS` rows at least: the query stands in all of them. Each has addresses
            # of its own and is multiplied from shared memory: from registers, sums were wrong at times.
            same = tl.zeros([ROWS], tl.int64)[:, None]
            left = tl.load(
                queries + query * query_stride + same + dims[None, :], mask=inside & (same == 0), other=0.0
            )
            right = tl.load(
                keys + row.to(tl.int64)[:, None] * key_stride + dims[None, :],
                mask=valid[:, None] & inside,
                other=0.0,
            )
            scores = tl.dot(left, right.T, scores, input_precision="ieee")
        score = tl.where(valid, tl.max(scores, axis=0), float("-inf"))
        order = _rising(score).to(tl.int64) * 4294967296 + (4294967295 - row.to(tl.int64))
        tl.store(ordered + place, tl.where(valid, order, NOTHING), mask=place < WIDTH)
        best = tl.max(tl.reshape(score, [KEYS // GROUP, GROUP]), axis=1)
        at = start // GROUP + tl.arange(0, KEYS // GROUP)
        group = tl.load(groups + at, mask=at < count, other=0)
        was = tl.load(maxima + group, mask=at < count, other=0.0)
        if tl.sum(((was != best) & (at < count)).to(tl.int32), 0) > 0:
            tl.store(flags + 1, 1)
    if SORTED:
        tl.debug_barrier()
        place = tl.arange(0, WIDTH)
        order = tl.load(ordered + place, mask=place < count * GROUP, other=NOTHING)
        order = tl.sort(order, descending=True)
        rising = (order >> 32).to(tl.int32)
        score = (rising ^ ((rising >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        tl.store(scores_out + query * wanted + place, score, mask=place < wanted)
        tl.store(rows_out + query * wanted + place, 4294967295 - (order & 4294967295), mask=place < wanted)
    else:
        for start in range(tl.cdiv(count * GROUP, KEYS) * KEYS, WIDTH, KEYS):
            tl.store(ordered + start + tl.arange(0, KEYS), tl.full([KEYS], NOTHING, tl.int64))


@triton.jit
@no_type_check
def _add_one(numbers, SIZE: tl.constexpr):
    """Add 1 to each."""
    place = tl.arange(0, SIZE)
    tl.store(numbers + place, tl.load(numbers + place) + 1)


def group_maxima(queries: Tensor, keys: Tensor, plan: Any) -> tuple[Tensor, Tensor]:
    """Largest scores by group `[batch, groups]` and by tile `[batch, tiles]`; −inf where no document is."""
    batch, documents = len(queries), len(keys)
    tiles = -(-documents // plan.keys)
    maxima = queries.new_empty(batch, tiles * plan.keys // (2 * plan.pairs), dtype=torch.float32)
    tile_maxima = queries.new_empty(batch, tiles, dtype=torch.float32)
    row_tiles = -(-batch // plan.rows)
    parts = max(processors(keys.device) // row_tiles, 1)
    _group_maxima[(row_tiles * parts,)](
        described(queries, plan.rows, DIMS),
        described(keys, plan.keys, DIMS),
        maxima,
        tile_maxima,
        batch,
        documents,
        row_tiles,
        -(-tiles // parts),
        maxima.stride(0),
        tile_maxima.stride(0),
        plan.rows,
        plan.keys,
        DIMS,
        -(-keys.shape[1] // DIMS),
        plan.pairs,
        num_warps=plan.warps,
        num_stages=plan.stages,
    )
    return maxima, tile_maxima


class BestKeys(NamedTuple):
    """Best keys of some queries: scores and rows `[batch, k]`, or `ordered` if they are not sorted.

    Attributes:
        unsure: 1 for queries that have to be done again.
        flags: whether any is unsure; whether a sum came out otherwise than before.
    """

    scores: Tensor
    rows: Tensor
    ordered: Tensor
    unsure: Tensor
    flags: Tensor


def best_keys(
    queries: Tensor,
    keys: Tensor,
    maxima: Tensor,
    best_tiles: Tensor,
    tiles: Tensor,
    capacity: int,
    plan: Any,
    *,
    listed: Tensor | None = None,
    sort: bool = True,
) -> BestKeys:
    """The best keys, from the k + 1 best tiles of each query or from `listed` groups `[batch, groups]`.

    `capacity` groups of a query can be listed; a power of two.
    """
    batch, k = len(queries), tiles.shape[1] - 1
    per_tile = plan.keys // (2 * plan.pairs)
    width = capacity * 2 * plan.pairs
    groups = tiles.new_empty(batch, capacity, dtype=torch.int32)
    unsure = tiles.new_empty(batch, dtype=torch.int32)
    counts = unsure
    if listed is not None:
        groups[:, : listed.shape[1]] = listed
        counts = torch.full_like(unsure, listed.shape[1])
    best = BestKeys(
        scores=maxima.new_empty(batch, k),
        rows=tiles.new_empty(batch, k),
        ordered=tiles.new_empty(batch, width),
        unsure=unsure,
        flags=torch.zeros(2, dtype=torch.int32, device=tiles.device),
    )
    _best_keys[(batch,)](
        queries,
        keys,
        maxima,
        best_tiles,
        tiles,
        groups,
        counts,
        best.ordered,
        best.scores,
        best.rows,
        unsure,
        best.flags,
        len(keys),
        keys.shape[1],
        queries.stride(0),
        keys.stride(0),
        maxima.stride(0),
        k,
        capacity,
        per_tile,
        LISTED // per_tile,
        SCORED_ROWS,
        SCORED_KEYS,
        DIMS,
        -(-keys.shape[1] // DIMS),
        plan.pairs,
        width,
        listed is not None,
        sort,
    )
    return best


def probe(device: torch.device) -> None:
    """Compile and run a small kernel."""
    numbers = torch.zeros(16, dtype=torch.int32, device=device)
    _add_one[(1,)](numbers, 16)
    assert numbers.tolist() == [1] * 16


def described(matrix: Tensor, rows: int, columns: int) -> Any:
    """The matrix as the copy engine reads and writes it, in tiles; zeros beyond its edges."""
    return TensorDescriptor.from_tensor(matrix, [rows, columns])


def processors(device: torch.device) -> int:
    """Programs that run at once; some, where a test interprets the kernels."""
    if device.type != "cuda":
        return 3
    card: Any = torch.cuda.get_device_properties(device)
    return card.multi_processor_count

"""Exact search on a Hopper card: compute maxima of groups of keys, then score only the best groups again.

**Proof.** Let s be the computed scores and τ the k-th largest maximum of a tile. k tiles hold a key of
score τ or more, so the k best keys have s ≥ τ and lie in groups whose maximum is ≥ τ, in tiles whose
maximum is ≥ τ. If the next tile's maximum is below τ, these tiles are the k chosen ones, and the list has
every group that matters. The same holds for any larger τ that k of the groups reach, which is taken where
the list would be too long. The keys of listed groups are scored again by the same sums, so with the same
result, which is checked for every group; sorted by score, then row, the first k are the answer.

**Ties at the cut,** of tiles or beyond the list: k tiles by (maximum, first), and among their groups k + 3
by (maximum, first), are enough. Were key x of the k best in another tile, each of k tiles would hold a key
that is better, or equal and of a lower row. The same holds for groups, of which only the 3 beside it in a
block of 8 · pairs rows interleave with it. Only the queries concerned are done again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsearch.attention.blockwise.card import kernels_for

_WORKSPACE = 1 << 30  # maxima of groups at a time, 4 GiB
_FEW = 64  # queries up to which reading the keys dominates
_SORTED = 2048  # integers that one program sorts; torch's top-k sorts more
_INTERLEAVED = 3  # groups that share their rows' range with a group


class SearchPlan(NamedTuple):
    """Sizes of a search's tiles: measured on an H100, `scripts/bench/gpu.py`.

    Attributes:
        rows: queries per tile.
        keys: keys per tile.
        pairs: half the size of a group. Small groups cost the first pass more writes, large groups cost the
            second pass more reads.
        stages: tiles in flight (software pipelining).
        warps: warps per program.
    """

    rows: int
    keys: int
    pairs: int
    stages: int
    warps: int


def search(queries: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
    """Return scores and rows of the k best keys, ties by row; None without a supporting kernel.

    Args:
        queries: `[batch, dim]`, without a gradient.
        keys: `[documents, dim]`, without a gradient.
        k: at least 1.
    """
    queries = queries.contiguous()
    kernels = kernels_for("search", queries, keys)
    plan = choose_plan(len(queries), len(keys))
    if kernels is None or -(-len(keys) // plan.keys) <= k:
        return None
    groups = -(-len(keys) // plan.keys) * (plan.keys // (2 * plan.pairs))
    at_once = max(_WORKSPACE // groups // plan.rows, 1) * plan.rows
    parts: list[tuple[Tensor, Tensor]] = []
    try:
        with torch.cuda.device(keys.device):
            for start in range(0, len(queries), at_once):
                best = search_part(kernels, queries[start : start + at_once], keys, k, plan)
                if best is None:
                    return None
                parts.append(best)
    except torch.OutOfMemoryError:
        return None  # blocks need less memory
    if len(parts) == 1:
        return parts[0]
    scores, rows = zip(*parts, strict=True)
    return torch.cat(scores), torch.cat(rows)


def choose_plan(batch: int, documents: int) -> SearchPlan:
    """Choose the tiles for these numbers of queries and documents."""
    pairs = 4 if documents <= 4_000_000 else 8
    if batch <= _FEW:
        return SearchPlan(rows=64, keys=256, pairs=pairs, stages=4, warps=4)
    return SearchPlan(rows=128, keys=256, pairs=pairs, stages=3, warps=8)


def search_part(
    kernels: Any, queries: Tensor, keys: Tensor, k: int, plan: SearchPlan
) -> tuple[Tensor, Tensor] | None:
    """Search with as many queries as the workspace holds; None if a repeated sum differs."""
    maxima, tile_maxima = kernels.group_maxima(queries, keys, plan)
    best_tiles, tiles = tile_maxima.topk(k + 1, dim=1)
    capacity = _capacity(k)
    sort = capacity * 2 * plan.pairs <= _SORTED
    best = kernels.best_keys(queries, keys, maxima, best_tiles, tiles, capacity, plan, sort=sort)
    columns = (best.scores, best.rows) if sort else _sorted(best.ordered, k)
    any_unsure, different = best.flags.tolist()
    if any_unsure:
        again = best.unsure.nonzero()[:, 0]
        chosen, mine = _stable_groups(maxima[again], tile_maxima[again], k, plan), queries[again]
        best = kernels.best_keys(
            mine, keys, maxima[again], best_tiles, tiles[again], capacity, plan, listed=chosen, sort=sort
        )
        for column, part in zip(
            columns, (best.scores, best.rows) if sort else _sorted(best.ordered, k), strict=True
        ):
            column[again] = part
        different |= best.flags[1].item()
    return None if different else columns


def _capacity(k: int) -> int:
    """Return the capacity for groups of a query: k tiles have few more than k relevant groups."""
    wanted = k + 8 + k // 8
    return max(16, 1 << (wanted - 1).bit_length())


def _sorted(ordered: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return scores and rows of the k largest integers."""
    best = ordered.topk(k, dim=1).values
    rising = (best >> 32).int()
    return (rising ^ ((rising >> 31) & 0x7FFFFFFF)).view(torch.float32), 0xFFFFFFFF - (best & 0xFFFFFFFF)


def _stable_groups(maxima: Tensor, tile_maxima: Tensor, k: int, plan: SearchPlan) -> Tensor:
    """Choose groups by (maximum, first) within tiles by (maximum, first)."""
    per_tile = plan.keys // (2 * plan.pairs)
    tiles = _stable_places(tile_maxima, k)
    groups = (tiles.unsqueeze(-1) * per_tile + torch.arange(per_tile, device=tiles.device)).flatten(1)
    chosen = _stable_places(maxima.gather(1, groups), min(k + _INTERLEAVED, groups.shape[1]))
    return groups.gather(1, chosen).int()


def _stable_places(values: Tensor, k: int) -> Tensor:
    """Return the places of the k largest, ascending; the leftmost of equal ones."""
    places = torch.arange(values.shape[1], device=values.device)
    ordered = (_rising(values).long() << 32) | (0xFFFFFFFF - places)
    return (0xFFFFFFFF - (ordered.topk(k, dim=1).values & 0xFFFFFFFF)).sort(dim=1).values


def _rising(values: Tensor) -> Tensor:
    """Map floats to integers of the same order; −0 and 0 are equal."""
    bits = (values + 0.0).view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)

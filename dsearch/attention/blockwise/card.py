"""Exact attention and exact search on a Hopper card, by our own kernels.

The kernels are written in Triton, which comes with torch for CUDA on Linux. They are used on Hopper cards
(H100, H200), the only ones they were measured on. Everywhere else torch's own operators compute the same.

Attention, in bfloat16, takes two passes per block. Logits are never stored.

    weights = exp(l − r)                 our kernel: logits stay in registers, r from the blocks before
    context = weights · values           torch's matrix product, summed in float32

The backward pass starts from the triple of the whole corpus. Our kernel computes
`slopes = p (G · v − δ) / t`; matrix products with keys, queries and G follow. Gradients of keys and values
are computed only if they are required. Between the two passes of a block its weights are stored as bfloat16,
`[batch, block_size]`: moving them takes less time than the products, whatever the dimension.

**The reference r** need not be the largest logit, only within some ninety of it: bfloat16 and float32 round
relatively, and hold e^±87. It is log Z of the first documents, plus `HEADROOM` for larger logits to come, and
0 for a query that attends to none of those. If a sum overflows all the same, or all logits of such a query
are far below 0, the result is None and exact.py falls back to its unfused path.

Search computes maxima of groups of keys, then scores only the best groups again.

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

import importlib
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dsearch.attention.blockwise.blocks import Corpus, CorpusGradients, ExactAttention, PartialAttention

_log = logging.getLogger(__name__)

HOPPER = 9
ALIGNMENT_BYTES = 16  # alignment of addresses and rows for the card's copy engine


def kernels_for(task: str, *matrices: Tensor) -> ModuleType | None:
    """Kernels of a task if they support these matrices, else None: torch's operators are used then.

    Args:
        task: "search" or "attention".
        matrices: on one card, of half precision and one type, of at least one row and column; rows one after
            another at aligned addresses.
    """
    first = matrices[0]
    same = all(m.device == first.device and m.dtype == first.dtype for m in matrices)
    if first.device.type != "cuda" or first.dtype not in (torch.bfloat16, torch.float16) or not same:
        return None
    if torch.compiler.is_compiling() or not all(_laid_out(m) for m in matrices):
        return None
    return _module(task) if _compiles(first.device) else None


@cache
def _module(task: str) -> ModuleType:
    return importlib.import_module(f"dsearch.attention.blockwise.triton_{task}")


@cache
def _compiles(device: torch.device) -> bool:
    """Compile and run a small kernel on a Hopper card; log the reason of a failure."""
    if torch.cuda.get_device_capability(device)[0] != HOPPER:
        return False
    if "dtype" not in torch.ops.aten.mm.overloads():
        return False  # torch before 2.8 has no float32 sums of half precision products
    try:
        with torch.cuda.device(device):
            _module("search").probe(device)
    except Exception as error:  # no or old Triton, no C compiler, unknown driver …
        _log.warning("kernels for this card are not used, torch's are: %s: %s", type(error).__name__, error)
        return False
    return True


def _laid_out(matrix: Tensor) -> bool:
    step = matrix.stride(0) * matrix.element_size()
    return (
        0 < matrix.shape[0] < 2**31
        and matrix.shape[1] > 0
        and matrix.stride(1) == 1
        and step % ALIGNMENT_BYTES == 0
        and step >= matrix.shape[1] * matrix.element_size()
        and matrix.data_ptr() % ALIGNMENT_BYTES == 0
    )


HEADROOM = 40.0
_HELD = 60.0  # maximum distance of the largest logit below the reference
_FIRST = 1024  # documents that determine the reference
_BIAS_STEP = 16  # alignment of a bias's rows for vectorised reads
_LOGITS = 1 << 28  # logits of a block; below, launches dominate
_LOG2_E = math.log2(math.e)


def block_size_on_card(queries: Tensor, keys: Any) -> int | None:
    """Return the number of documents at a time; None if the card does not support these types."""
    halves = isinstance(keys, Tensor) and keys.dtype == queries.dtype == torch.bfloat16 and len(queries)
    if not halves or kernels_for("attention", _wide(queries)) is None:
        return None
    return min(max(_LOGITS // len(queries), 1 << 16), 1 << 20)


def attend_on_card(
    corpus: Corpus, queries: Tensor, temperature: Tensor, parameters: Sequence[Tensor]
) -> PartialAttention | None:
    """Compute the triple of the whole corpus; None if the card does not support it or a sum overflows."""
    halves, wide = _halves(corpus, queries), _wide(queries)
    kernels = None if halves is None else kernels_for("attention", wide)
    if halves is None or kernels is None:
        return None
    return attend(kernels, halves, wide, temperature, parameters)


def attend(
    kernels: Any, corpus: Corpus, queries: Tensor, temperature: Tensor, parameters: Sequence[Tensor]
) -> PartialAttention | None:
    """Compute it with these kernels, for a corpus of the queries' type."""
    factors = (_LOG2_E / temperature).expand(len(queries)).contiguous()
    sums = reference = context = unknown = None
    for rows, keys, values in corpus.blocks():
        bias = _bias(corpus, rows, parameters)
        wide = _wide(keys)
        if sums is None or reference is None or context is None:
            reference, unknown = _reference(wide[:_FIRST], queries, factors, bias)
            sums = kernels.AttentionSums.room(queries, bias)
            context = reference.new_zeros(len(queries), corpus.value_dim)
        weights = kernels.weigh(queries, wide, factors, reference * _LOG2_E, bias, sums)
        context += _product(weights, values)
    if sums is None or reference is None or context is None or unknown is None:
        return None  # no documents
    mass, rounded = sums.weights.sum(0), sums.rounded.sum(0)
    # Divided by the rounded weights, so that a single document has a weight of exactly 1.
    context *= (mass / rounded.masked_fill(rounded == 0, 1.0)).unsqueeze(1)
    highest = sums.most.amax(0) / _LOG2_E
    far = unknown & (highest != -math.inf) & (highest < -_HELD)
    finite = mass.isfinite().all() & context.isfinite().all() & ~far.any()
    return PartialAttention(reference, mass, context) if bool(finite) else None


def attend_on_card_backward(
    corpus: Corpus,
    queries: Tensor,
    temperature: Tensor,
    parameters: Sequence[Tensor],
    total: PartialAttention,
    grad: ExactAttention,
    gradients: CorpusGradients,
) -> None:
    """Compute `gradients` except the bias's, after `attend_on_card`; `total.context` is finished."""
    halves = _halves(corpus, queries)
    kernels = kernels_for("attention", _wide(queries))
    assert halves is not None
    assert kernels is not None
    attend_backward(kernels, halves, queries, temperature, parameters, total, grad, gradients)


def attend_backward(
    kernels: Any,
    corpus: Corpus,
    queries: Tensor,
    temperature: Tensor,
    parameters: Sequence[Tensor],
    total: PartialAttention,
    grad: ExactAttention,
    gradients: CorpusGradients,
) -> None:
    """Compute them with these kernels."""
    factors = (_LOG2_E / temperature).expand(len(queries)).contiguous()
    wide_queries = _wide(queries)
    grads = _wide(grad.context.to(queries.dtype))
    # δ from the rounded G; otherwise Σ ∂l would not be the gradient of log Z.
    deltas = (grads[:, : total.context.shape[1]] * total.context).sum(-1) - grad.log_partition
    per_query = (
        total.max * _LOG2_E,
        1 / total.sum,
        deltas,
        (1 / temperature).expand(len(queries)).contiguous(),
    )
    pooled = corpus.values is None
    want_weights = gradients.values is not None or (pooled and gradients.keys is not None)
    for rows, keys, values in corpus.blocks():
        wide = _wide(keys)
        slopes, weights = kernels.slope(
            wide_queries,
            grads,
            wide,
            wide if pooled else _wide(values),
            factors,
            per_query[0],
            _bias(corpus, rows, parameters),
            *per_query[1:],
            want_weights=want_weights,
        )
        gradients.queries.add_(_product(slopes, keys))
        if gradients.keys is not None:
            product = _product(slopes.T, queries)
            if pooled and weights is not None:
                product += _product(weights.T, grads[:, : keys.shape[1]])
            gradients.keys[rows] = product.to(gradients.keys)
        if gradients.values is not None and weights is not None:
            product = _product(weights.T, grads[:, : values.shape[1]])
            gradients.values[rows] = product.to(gradients.values)


def _halves(corpus: Corpus, queries: Tensor) -> Corpus | None:
    """Return the corpus in bfloat16 if it and the queries have that type; a bias may have any."""
    tensors = (queries, corpus.keys, corpus.values)
    halves = all(
        isinstance(part, Tensor) and part.dtype == torch.bfloat16 for part in tensors if part is not None
    )
    return replace(corpus, dtype=torch.bfloat16) if halves and len(queries) else None


def _wide(matrix: Tensor) -> Tensor:
    """Lay out a matrix for the copy engine: contiguous rows of a multiple of 16 bytes."""
    missing = -matrix.shape[1] % (ALIGNMENT_BYTES // matrix.element_size())
    rows = functional.pad(matrix, (0, missing)) if missing else matrix.contiguous()
    return rows if rows.data_ptr() % ALIGNMENT_BYTES == 0 else rows.clone()


def _bias(corpus: Corpus, rows: slice, parameters: Sequence[Tensor]) -> Tensor | None:
    bias = corpus.block_bias(rows, parameters)
    if bias is None:
        return None
    columns = rows.stop - rows.start
    bias = bias.detach().to(corpus.device)
    bias = bias.expand(bias.shape[0] if bias.dim() > 1 else 1, columns)
    if bias.stride(1) == 1 and bias.stride(0) % _BIAS_STEP == 0 and bias.data_ptr() % ALIGNMENT_BYTES == 0:
        return bias
    return functional.pad(bias, (0, -columns % _BIAS_STEP))[:, :columns]


def _reference(keys: Tensor, queries: Tensor, factors: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute r from the first keys; also mark queries that attend to none of them, whose r is 0."""
    logits = _product(queries, keys.T) * (factors / _LOG2_E).unsqueeze(1)
    if bias is not None:
        logits += bias[:, : len(keys)]
    log_sums = logits.logsumexp(1)
    unknown = log_sums == -math.inf
    return (log_sums + HEADROOM).masked_fill(unknown, 0.0), unknown


def _product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` of halves, summed in float32."""
    if left.dtype == torch.float32:  # interpreted kernels in tests
        return left @ right
    return torch.ops.aten.mm.dtype(left, right, torch.float32)


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

"""Array operations of the served formulas, for tensors and for NumPy arrays.

A search has no gradients, so it needs no torch, whose import takes longer than the search itself. Its
formulas are written once, with these operations: of a tensor each is torch's own, with its gradient, and of a
NumPy array NumPy's. The module imports torch only for tensors, which exist only after torch was imported.

Softmax over padded, masked or empty candidate sets has no NaN in value or gradient:

    a_i = exp(l_i) / Σ_j exp(l_j)        over the allowed j; zero elsewhere; all zero when nothing is allowed

A mask is True where a candidate **may be attended** (the convention of
`torch.nn.functional.scaled_dot_product_attention`). A logit of −inf masks its own place. An empty slice has
no distribution, so its weights are zero: a search that finds nothing pools nothing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Bool, Float

if TYPE_CHECKING:
    from torch import Tensor as Array
else:
    Array = Any  # a tensor or a NumPy array; to type checkers a tensor, whose operators both have

_SORTED = 256  # numbers that are sorted sooner than they are parted


def is_array(numbers: object) -> bool:
    """Return True for a NumPy array or scalar."""
    return isinstance(numbers, (np.ndarray, np.generic))


def is_tensor(numbers: object) -> bool:
    """Return True for a tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(numbers, torch.Tensor)


def known_all(condition: Bool[Array, ...]) -> bool:
    """True if the mask is known to hold everywhere. Checking costs less than filling masked places.

    The check runs only in inference mode on a CPU. Elsewhere it could make the host wait for a device, break
    a compiled graph, or meet a tensor that `torch.func` maps over, which has no value to inspect.
    """
    if is_array(condition):
        return bool(condition.all())
    import torch

    answering = torch.is_inference_mode_enabled() and not torch.compiler.is_compiling()
    return answering and condition.device.type == "cpu" and bool(condition.all())


def without_gradients() -> AbstractContextManager[Any]:
    """Compute without gradients; where torch was never imported, there are none."""
    torch = sys.modules.get("torch")
    return nullcontext() if torch is None else torch.no_grad()


def inference() -> AbstractContextManager[Any]:
    """Compute what never gets gradients, in torch's inference mode where torch was imported."""
    torch = sys.modules.get("torch")
    return nullcontext() if torch is None else torch.inference_mode()


def gradients_enabled() -> bool:
    """Return True if torch records gradients."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.is_grad_enabled()


def numbers_of(numbers: Array) -> Any:
    """Return the numbers as a NumPy array, outside the graph."""
    return numbers if is_array(numbers) else numbers.detach().cpu().numpy()


def as_like(numbers: Any, other: Array) -> Array:
    """Convert a NumPy array to the kind, the number type and the device of `other`."""
    if is_array(other):
        return _array(np.asarray(numbers, _plain(other).dtype))
    import torch

    return torch.as_tensor(numbers).to(other)


def on_device_of(numbers: Any, other: Array) -> Array:
    """Convert a NumPy array to the kind and the device of `other`, with its own number type."""
    if is_array(other):
        return numbers
    import torch

    return torch.as_tensor(numbers).to(other.device)


def zeros(shape: tuple[int, ...], other: Array) -> Array:
    """Zeros of the kind of `other`."""
    if not is_array(other):
        return other.new_zeros(shape)
    return _array(np.zeros(shape, _plain(other).dtype))


def all_true(other: Array) -> Array:
    """A mask of the shape of `other`, True everywhere."""
    if not is_array(other):
        return other.new_ones(other.shape).bool()
    return _array(np.ones(other.shape, bool))


def fill(numbers: Array, mask: Array, value: float) -> Array:
    """`numbers`, but `value` where `mask` is True."""
    if not is_array(numbers):
        return numbers.masked_fill(mask, value)
    array = _plain(numbers)
    return _array(np.where(_plain(mask), array.dtype.type(value), array))


def concat(parts: Sequence[Array], axis: int) -> Array:
    """Join along an axis."""
    if is_array(parts[0]):
        return _array(np.concatenate([_plain(part) for part in parts], axis))
    import torch

    return torch.cat([*parts], axis)


def stack(parts: Sequence[Array], axis: int) -> Array:
    """Join along a new axis."""
    if is_array(parts[0]):
        return _array(np.stack([_plain(part) for part in parts], axis))
    import torch

    return torch.stack([*parts], axis)


def product(left: Array, right: Array) -> Array:
    """`left @ right.T`, of tensors by the faster of torch's libraries."""
    if is_array(left):
        return left @ right.T
    from dsearch.products import product as by_torch

    return by_torch(left, right)


def broadcast(numbers: Array, shape: tuple[int, ...]) -> Array:
    """Broadcast to a shape; nothing is copied."""
    return _array(np.broadcast_to(_plain(numbers), shape)) if is_array(numbers) else numbers.expand(shape)


def exp(numbers: Array) -> Array:
    """e to the power of each number."""
    return _array(np.exp(_plain(numbers))) if is_array(numbers) else numbers.exp()


def log(numbers: Array) -> Array:
    """Natural logarithm; −∞ of 0."""
    if not is_array(numbers):
        return numbers.log()
    with np.errstate(divide="ignore"):
        return _array(np.log(_plain(numbers)))


def sigmoid(numbers: Array) -> Array:
    """σ(x) = 1 / (1 + e^−x)."""
    if not is_array(numbers):
        return numbers.sigmoid()
    with np.errstate(over="ignore"):  # e^∞ is ∞, whose inverse is 0
        return _array(1 / (1 + np.exp(-_plain(numbers))))


def gelu(numbers: Array) -> Array:
    """x Φ(x) (not its approximation by tanh)."""
    if not is_array(numbers):
        import torch

        return torch.nn.functional.gelu(numbers)
    array = _plain(numbers)
    errors: Any = np.frompyfunc(math.erf, 1, 1)(array / math.sqrt(2))
    return _array(array * (0.5 * (1 + np.asarray(errors, array.dtype))))


def softmax(numbers: Array, axis: int) -> Array:
    """e^x over its sum along an axis, the largest number subtracted first."""
    if not is_array(numbers):
        return numbers.softmax(axis)
    array = _plain(numbers)
    powers = np.exp(array - array.max(axis, keepdims=True, initial=-np.inf))
    return _array(powers / powers.sum(axis, keepdims=True))


def logsumexp(numbers: Array, axis: int) -> Array:
    """Logarithm of the sum of e^x along an axis; −∞ of nothing, and where every x is −∞."""
    if not is_array(numbers):
        return numbers.logsumexp(axis)
    array = _plain(numbers)
    highest = array.max(axis, keepdims=True, initial=-np.inf)
    if np.isfinite(highest).all():
        return _array(np.log(np.exp(array - highest).sum(axis)) + highest.squeeze(axis))
    highest = _plain(np.where(np.isfinite(highest), highest, array.dtype.type(0)))
    return log(_array(np.exp(array - highest).sum(axis))) + _array(highest.squeeze(axis))


def gather(numbers: Array, index: Array, axis: int) -> Array:
    """Numbers at an index along an axis; the index broadcasts along the others."""
    if is_array(numbers):
        array, at = _plain(numbers), _plain(index)
        if axis == array.ndim - 1 and at.size == at.shape[-1]:  # of one query; a tenth of the time
            return _array(array.take(at.reshape(-1), axis))
        return _array(np.take_along_axis(array, at, axis))
    shape = [*numbers.shape]
    shape[axis] = index.shape[axis]
    return numbers.gather(axis, index.expand(shape))


def scatter(numbers: Array, index: Array, size: int) -> Array:
    """Rows of zeros along the last axis, with the numbers at an index that names none twice."""
    if not is_array(numbers):
        return numbers.new_zeros((*numbers.shape[:-1], size)).scatter(-1, index, numbers)
    rows = np.zeros((*numbers.shape[:-1], size), _plain(numbers).dtype)
    np.put_along_axis(rows, _plain(index), _plain(numbers), -1)
    return _array(rows)


def put(numbers: Array, index: Array, others: Array) -> Array:
    """`numbers`, but `others` at an index along the only axis."""
    if not is_array(numbers):
        return numbers.scatter(0, index, others)
    changed = np.array(numbers)
    changed[_plain(index)] = others
    return _array(changed)


def repeat(numbers: Array, counts: np.ndarray) -> Array:
    """Each number of one axis as often as it is counted."""
    if is_array(numbers):
        return _array(_plain(numbers).repeat(counts))
    return numbers[on_device_of(np.arange(len(counts)).repeat(counts), numbers)]


def totals(numbers: Array, places: Array, size: int) -> Array:
    """Sum of the numbers at each place from 0 to `size` − 1."""
    if is_array(numbers):
        return _array(np.bincount(_plain(places), _plain(numbers), size).astype(_plain(numbers).dtype))
    return numbers.new_zeros(size).index_add_(0, places, numbers)


def largest_of_groups(numbers: Array, counts: Array) -> Array:
    """The largest number of each group of columns, at least 0; 0 of an empty group.

    Args:
        numbers: groups of columns, one behind the other.
        counts: columns of each group.
    """
    if not is_array(numbers):
        import torch

        owners = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
        start = numbers.new_zeros(len(numbers), len(counts))
        return start.scatter_reduce(1, owners.expand_as(numbers), numbers, "amax", include_self=True)
    array, sizes = _plain(numbers), _plain(counts)
    best = np.zeros((len(array), len(sizes)), array.dtype)
    some = np.flatnonzero(sizes)
    if len(some):
        starts = (sizes.cumsum() - sizes)[some]
        best[:, some] = np.maximum(np.maximum.reduceat(array, starts, axis=1), 0)
    return _array(best)


def places_of_largest(numbers: Array, count: int) -> Array:
    """Indices of the `count` largest numbers along the last axis, the largest first."""
    if not is_array(numbers):
        return numbers.topk(min(count, numbers.shape[-1]), dim=-1).indices
    array = _plain(numbers)
    if array.shape[-1] <= max(count, _SORTED):
        return _array(np.argsort(-array, axis=-1, kind="stable")[..., :count])
    some = np.argpartition(-array, count, axis=-1)[..., :count]
    order = np.argsort(-np.take_along_axis(array, some, -1), axis=-1, kind="stable")
    return _array(np.take_along_axis(some, order, -1))


def best_first(numbers: Array) -> Array:
    """Indices of each row from the largest number to the smallest, ties by index; without a gradient."""
    if is_array(numbers):
        return _array(np.argsort(-_plain(numbers), axis=1, kind="stable"))
    return numbers.detach().sort(dim=1, descending=True, stable=True).indices


def largest(numbers: Array, count: int) -> Array:
    """The `count` largest numbers along the last axis, the largest first."""
    if not is_array(numbers):
        return numbers.topk(count, dim=-1).values
    array, size = _plain(numbers), numbers.shape[-1]
    if 0 < count < size:
        array = np.partition(array, size - count, axis=-1)[..., size - count :]
    return _array(np.sort(array, axis=-1)[..., ::-1][..., :count])


def at_least(numbers: Array, least: float) -> Array:
    """Each number, but `least` where it is smaller."""
    if not is_array(numbers):
        return numbers.clamp_min(least)
    return _array(np.maximum(_plain(numbers), _plain(numbers).dtype.type(least)))


def at_most(numbers: Array, most: float) -> Array:
    """Each number, but `most` where it is larger."""
    if not is_array(numbers):
        return numbers.clamp(max=most)
    return _array(np.minimum(_plain(numbers), _plain(numbers).dtype.type(most)))


def length(vectors: Array) -> Array:
    """Euclidean length along the last axis, which is kept with size 1; its gradient at zero is zero."""
    if is_array(vectors):
        return _array(np.linalg.norm(_plain(vectors), axis=-1, keepdims=True))
    import torch

    return torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)  # pyright: ignore


def unit(vectors: Float[Array, "*shape dim"]) -> Float[Array, "*shape dim"]:
    """Normalise each vector to length 1; zero vectors stay zero and pass no gradient."""
    norm = length(vectors)
    something = norm != 0
    if known_all(something):
        return vectors / norm
    return fill(vectors / fill(norm, ~something, 1.0), ~something, 0.0)


def keyword_part(
    weight: Float[Array, " heads"], scores: Float[Array, "batch documents"]
) -> Float[Array, "batch heads documents"]:
    """Compute w_h b(q, d), the keyword part of each head's score."""
    return weight[:, None] * scores[:, None]


def _plain(numbers: Any) -> Any:
    """The same, whose type is not checked: to type checkers an `Array` is a tensor."""
    return numbers


def _array(numbers: Any) -> Array:
    return numbers


def masked_softmax(
    logits: Float[Array, "*shape"], mask: Bool[Array, "*#shape"] | None = None, dim: int = -1
) -> Float[Array, "*shape"]:
    """Softmax along `dim` over the allowed places.

    Args:
        logits: finite or −inf; the largest is subtracted first, so ±1e4 do not overflow.
        mask: broadcastable to `logits`, True where attention is allowed; None allows all.
        dim: the dimension of the candidates; it may have length 0.

    Returns:
        Weights of the shape of `logits`. Each slice sums to 1, or to 0 where nothing is allowed. Masked
        places pass on no gradient.
    """
    open_ = _open(logits, mask)
    if known_all(open_):
        return softmax(logits, dim)
    return fill(softmax(_filled(logits, open_, dim), dim), ~open_, 0.0)


def masked_log_softmax(
    logits: Float[Array, "*shape"],
    mask: Bool[Array, "*#shape"] | None = None,
    dim: int = -1,
    fill: float = -math.inf,
) -> Float[Array, "*shape"]:
    """Logarithm of `masked_softmax`, computed without leaving log space.

    Args:
        logits: as in `masked_softmax`.
        mask: as in `masked_softmax`.
        dim: the dimension of the candidates.
        fill: value of masked places. −inf is the logarithm of their weight; use 0 if the result is
            multiplied by targets that vanish at the same places (0 · −inf is NaN).
    """
    open_ = _open(logits, mask)
    if known_all(open_):
        return logits.log_softmax(dim)
    return _filled(logits, open_, dim).log_softmax(dim).masked_fill(~open_, fill)


def temper(
    scores: Float[Array, "*shape"], temperature: float | Float[Array, "*#shape"]
) -> Float[Array, "*shape"]:
    """Logits: scores over temperature. A score of −inf stays outside the division.

    It would come out as −inf all the same, but the temperature's gradient would be 0 · −inf, a NaN.
    """
    finite = scores != -math.inf
    if known_all(finite):
        return scores / temperature
    return fill(fill(scores, ~finite, 0.0) / temperature, ~finite, -math.inf)


CONE = ("exp", "relu", "sigmoid")
_HIGHEST = 60.0  # e^60 times any number of values stays finite in float32


def cone_logits(logits: Float[Array, "*shape"], name: str) -> Float[Array, "*shape"]:
    """log φ(l) for the weight function φ of a pooling without normalisation, −∞ where φ is 0.

    | name | φ(l) | source |
    |---|---|---|
    | `exp` | exp(min(l, 60)), the kernel of a kernel score | Nadaraya–Watson without its denominator |
    | `relu` | max(l, 0) | ReLU attention (Zhang et al., 2021, arXiv:2104.07012, without its norm) |
    | `sigmoid` | 1 / (1 + e^−l), no offset | sigmoid attention (Ramapuram et al., 2024, arXiv:2409.04431) |

    A logit of −∞ has the weight 0. Logarithms, so that the blocks and shares of a softmax serve these, too.
    """
    if name == "exp":
        return at_most(logits, _HIGHEST)
    if name == "relu":
        nothing = logits <= 0
        return fill(log(fill(logits, nothing, 1.0)), nothing, -math.inf)
    if is_array(logits):
        return _array(-np.logaddexp(_plain(logits).dtype.type(0), -_plain(logits)))
    import torch

    return torch.nn.functional.logsigmoid(logits)


def entropy(weights: Float[Array, ...], dim: int = -1) -> Float[Array, ...]:
    """Shannon entropy −Σ a log a along `dim`, in nats; 0 log 0 is 0, for one-hot and for empty slices alike.

    The derivative at a = 0 is +∞; here it is taken as 0, so that an underflowed weight cannot make a NaN.
    """
    if is_array(weights):
        array = _plain(weights)
        positive = _plain(fill(weights, weights <= 0, 1.0))
        return _array(-(array * np.log(positive)).sum(dim))
    import torch

    if not torch.is_grad_enabled():
        terms = cast("Array", torch.special.entr(weights))  # pyright: ignore[reportUnknownMemberType]
        return terms.sum(dim)
    return -(weights * log(fill(weights, weights <= 0, 1.0))).sum(dim)


def _open(logits: Array, mask: Array | None) -> Array:
    """The allowed places."""
    open_ = logits != -math.inf
    return open_ if mask is None else open_ & mask


def _filled(logits: Array, open_: Array, dim: int) -> Array:
    """Logits that are −inf where they are not allowed, but 0 throughout a slice with none allowed.

    The zeros keep softmax and its derivative finite in a slice whose result is discarded. Without them a NaN
    would pass through both, unseen except by anomaly detection.
    """
    empty: Any = ~open_.any(dim, keepdims=True)  # pyright: ignore  # `keepdim` of tensors, too
    return fill(fill(logits, ~open_, -math.inf), cast("Array", empty), 0.0)

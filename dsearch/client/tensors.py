"""Vectors and tensors on their way: to what JSON and safetensors hold, and back into one answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from dsearch.client.answers import Attention, Vjp
from dsearch.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    Vectors: TypeAlias = Float[np.ndarray, "batch dim"] | Sequence[Sequence[float]]
    Rows: TypeAlias = Float[np.ndarray, "batch candidates"] | Sequence[Sequence[float]]

QUERIES_AT_ONCE = 64
_OF_ALL = ("mixture",)  # arrays that have no row a query
_BY_HEAD = ("dense", "keyword", "head_weights", "slopes")


def numbers(vectors: Any) -> np.ndarray:
    """Vectors as float64: JSON's numbers then are theirs to the last bit, whatever they are computed in.

    Raises:
        InvalidRequest: not two dimensions of finite numbers.
    """
    import numpy as np

    try:
        array = np.ascontiguousarray(vectors, np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim != 2:
        raise InvalidRequest("vectors that are no matrix; give [n, dimension] numbers")
    if not np.isfinite(array).all():
        raise InvalidRequest("vectors with numbers that are not finite; give finite ones")
    return array


def ragged(rows: Any) -> list[Any]:
    """Rows of numbers, each of its own length."""
    import numpy as np

    return [np.ascontiguousarray(row, np.float64) for row in rows]


def parts_of(queries: Sequence[str] | None, vectors: Any) -> Iterator[dict[str, Any]]:
    """What to ask at once, as a request has it: a few queries, their vectors, or both.

    Raises:
        InvalidRequest: texts and vectors of different number.
    """
    states = None if vectors is None else numbers(vectors)
    if queries is not None and states is not None and len(queries) != len(states):
        raise InvalidRequest(
            f"{len(queries)} queries and {len(states)} vectors; give as many, or either alone"
        )
    count = len(queries) if queries is not None else 0 if states is None else len(states)
    for start in range(0, max(count, 1), QUERIES_AT_ONCE):
        part = slice(start, start + QUERIES_AT_ONCE)
        yield {
            "queries": None if queries is None else list(queries[part]),
            "vectors": None if states is None else states[part],
        }


def counted(part: Mapping[str, Any]) -> int:
    """How many queries a part has."""
    return len(part["queries"] if part["queries"] is not None else part["vectors"])


def joined(found: Sequence[Attention]) -> Attention:
    """Answers to several parts as one, all as wide as the widest."""
    import numpy as np

    if len(found) == 1:
        return found[0]
    widest = max(one.weights.shape[1] for one in found)
    arrays: dict[str, Any] = {}
    for name in (one.name for one in fields(Attention)):
        parts = [getattr(one, name) for one in found]
        if name in _OF_ALL or not isinstance(parts[0], np.ndarray):
            continue
        if name in ("keys", "values"):
            parts = _alike(parts, len(found[0].mixture))
        by_head = name in _BY_HEAD or parts[0].ndim == 4
        axis = None if name in ("context", "null_weight") else 2 if by_head else 1
        arrays[name] = np.concatenate([_widened(part, axis, widest) for part in parts])
    certificates = None
    if found[0].certificates is not None:
        certificates = [proof for one in found for proof in one.certificates or []]
    ids = [line for one in found for line in one.ids]
    return replace(found[0], ids=ids, certificates=certificates, **arrays)


def joined_gradients(found: Sequence[Vjp]) -> Vjp:
    """Gradients of several parts as one: those of the states one below the other, those of the head added."""
    import numpy as np

    head = {name: sum(one.head[name] for one in found) for name in found[0].head}
    return Vjp(found[0].stamp, np.concatenate([one.states for one in found]), head)  # type: ignore[arg-type]


def head_file(tensors: Mapping[str, Any], record: Mapping[str, Any] | None) -> bytes:
    """A head as the server takes it: safetensors, with its record as JSON in their metadata."""
    import numpy as np
    from safetensors.numpy import save

    types = {"overlay.rows": np.int64}  # the rest is float32
    arrays = {
        name: np.array(tensor, types.get(name, np.float32), order="C") for name, tensor in tensors.items()
    }
    return save(arrays, None if record is None else {"record": json.dumps(record)})


def _alike(parts: list[np.ndarray], heads: int) -> list[np.ndarray]:
    """Vectors of candidates, by head in all parts if in any: where no document is long, heads share them."""
    import numpy as np

    if all(part.ndim == 3 for part in parts):
        return parts
    return [np.repeat(part[:, None], heads, 1) if part.ndim == 3 else part for part in parts]


def _widened(array: np.ndarray, axis: int | None, width: int) -> np.ndarray:
    import numpy as np

    if axis is None or array.shape[axis] == width:
        return array
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, width - array.shape[axis])
    return np.pad(array, padding)

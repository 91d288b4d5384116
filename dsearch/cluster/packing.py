"""Serialisation of records (messages.py) between the processes of a cluster, by MessagePack: data only.

Ray transfers bytes as they are. Its pickler visits every object of a record in Python, which took as long as
the search, and a pickle is a program. Here a record is the name of its class and its values.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, get_args

import msgpack
import numpy as np

from dsearch.cluster import messages
from dsearch.store import filters
from dsearch.types import Document, Highlight, Passage

_CLASSES = (
    *(messages.ShardAttendRequest, messages.ShardAttention, messages.ShardGradients),
    *(messages.ProposalRequest, messages.Proposal, messages.HitPreview),
    *(messages.HitRequest, messages.ShardHit, messages.PoolRequest, messages.PoolResult),
    *(messages.MemoryContent, messages.PastQueries, messages.QueryText, messages.MeaningRequest),
    *(messages.RescoreRequest, messages.RescoreResult),
    *(messages.GatherRequest, messages.GatherResult, Document, Highlight, Passage),
    *get_args(filters.Filter),
)
_BY_NAME: dict[str, Any] = {record.__name__: record for record in _CLASSES}
_FIELDS = {record: tuple(field.name for field in dataclasses.fields(record)) for record in _CLASSES}


def pack(record: Any) -> bytes:
    """Serialise a record or a list of records.

    Raises:
        TypeError: a value is neither a record, an array of numbers, nor a JSON value.
    """
    return _packb(record)


def unpack(packed: bytes) -> Any:
    """Restore the value that was given to `pack`."""
    return _unpackb(packed)


def _described(value: Any) -> dict[None, list[Any]]:
    """Describe a value of a type unknown to MessagePack by name and parts. No JSON has the key null."""
    kind = type(value)
    if kind in _FIELDS:
        return {None: [kind.__name__, *(getattr(value, field) for field in _FIELDS[kind])]}
    if kind is tuple:
        return {None: ["tuple", *value]}
    if kind is np.ndarray and not value.dtype.hasobject:
        return {None: ["array", value.dtype.str, list(value.shape), value.tobytes()]}
    raise TypeError(f"{kind.__name__} does not travel to shards; add it to dsearch/cluster/packing.py")


def _record(content: dict[Any, Any]) -> Any:
    if None not in content:
        return content
    name, *values = content[None]
    if name == "tuple":
        return tuple(values)
    if name == "array":
        kind, shape, numbers = values
        return np.frombuffer(bytearray(numbers), np.dtype(kind)).reshape(shape)
    return _BY_NAME[name](*values)


# Strict types keep tuples apart from lists, and subclasses from their bases.
_packb: Any = partial(msgpack.packb, default=_described, strict_types=True, unicode_errors="surrogatepass")
_unpackb: Any = partial(
    msgpack.unpackb, object_hook=_record, strict_map_key=False, unicode_errors="surrogatepass"
)

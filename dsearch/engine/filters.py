"""Metadata filters on the fields of a generation: the same matches as SQLite's, without reading documents.

Conditions are defined in `dsearch/store/filters.py`; here each is evaluated once for each distinct
value of a field. A test compares both implementations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool

from dsearch.engine.snapshot import Snapshot
from dsearch.index.metadata import FieldColumn, MetadataFields
from dsearch.lru_cache import LruCache
from dsearch.store import Store, filter_of
from dsearch.store.filters import (
    COMPARISONS,
    AllOf,
    AnyOf,
    Compares,
    Equals,
    Exists,
    Filter,
    Negation,
    Scalar,
    compared_fields,
)
from dsearch.store.reader import refuse_misspelt

_RECENT = 8  # masks of one byte a document


def matching(tree: Filter, fields: MetadataFields) -> Bool[np.ndarray, " documents"] | None:
    """Return a mask of the documents that match a filter; None if it uses a field that is not indexed.

    Raises:
        CorruptData: the files of a field are inconsistent.
    """
    match tree:
        case AllOf(parts) | AnyOf(parts):
            masks = [matching(part, fields) for part in parts]
            exact = [mask for mask in masks if mask is not None]
            if len(exact) < len(masks):
                return None
            join = np.logical_and if isinstance(tree, AllOf) else np.logical_or
            return join.reduce(exact)
        case Negation(part):
            mask = matching(part, fields)
            return None if mask is None else ~mask
        case Exists(keys):
            column = fields.column(keys)
            return None if column is None else column.present()
        case Equals(keys, operands):
            return _having(fields.column(keys), _one_of(operands))
        case Compares(keys, order, operand):
            return _having(fields.column(keys), _ordered(COMPARISONS[order].holds, operand))


def _having(column: FieldColumn | None, test: Callable[[Any], bool]) -> Bool[np.ndarray, " documents"] | None:
    if column is None:
        return None
    return column.having(np.fromiter(map(test, column.values), bool, len(column.values)))


def _one_of(operands: tuple[Scalar, ...]) -> Callable[[Any], bool]:
    """Compare type and value: 1 is not true, but it is 1.0."""
    wanted = {(_type(operand), operand) for operand in operands}
    return lambda value: not isinstance(value, list) and (_type(value), value) in wanted


def _ordered(order: Callable[[Any, Any], bool], operand: str | int | float) -> Callable[[Any], bool]:
    kind = _type(operand)
    return lambda value: not isinstance(value, list) and _type(value) is kind and order(value, operand)


def _type(value: Scalar) -> type:
    """Map numbers to float: text, numbers, booleans and null never match each other's conditions."""
    return float if type(value) is int else type(value)


class FilteredSnapshots:
    """Restricts snapshots of one store to filters; the last few are kept.

    A row is one version of a document, so later writes do not change the mask of a snapshot: equal stamps
    give equal answers.

    Args:
        store: store of the documents.
        suggest: whether a filter that matches nothing is refused if it has a misspelt field.
    """

    def __init__(self, store: Store, *, suggest: bool = False):
        self._store, self._suggest = store, suggest
        self.recent = LruCache[tuple[int, int, str], Snapshot](_RECENT)

    def restricted(self, snapshot: Snapshot, filter: object | None) -> Snapshot:
        """Return `snapshot` restricted to the documents that match a filter, given as JSON or parsed.

        Raises:
            InvalidRequest: not a filter, or, with `suggest`, one of a misspelt field.
        """
        tree = filter_of(filter)
        if tree is None:
            return snapshot
        generation = snapshot.generation.number
        key = (generation, snapshot.sequence, repr(tree))  # by repr: 1 and True are equal in Python
        result = self.recent.get(key)
        if result is None:
            result = self._restricted(snapshot, tree)
            if self._suggest and not result.documents:
                refuse_misspelt(self._store, compared_fields(tree), "filter")
            # Another generation would keep a replaced index in memory.
            self.recent.drop_where(lambda other: other[0] != generation)
            self.recent.put(key, result)
        return result

    def _restricted(self, snapshot: Snapshot, tree: Filter) -> Snapshot:
        """Use the generation's fields, and the store for fresh rows or for fields that are not indexed."""
        fields = snapshot.generation.fields
        built = None if fields is None else matching(tree, fields)
        if built is None:
            return snapshot.restricted_to(self._store.rows_matching_ever(tree))
        fresh = snapshot.fresh.rows
        if len(fresh):
            rows = self._store.rows_matching_ever(tree, after=int(fresh[0]) - 1)
            built = np.concatenate([built, np.isin(fresh, rows)])
        return snapshot.where(built)

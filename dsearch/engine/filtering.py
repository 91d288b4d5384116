"""Filters on the metadata that a generation keeps by field: the documents that SQLite would find, without
reading them.

What a condition means is written in `dsearch/store/filters.py`; here it is asked of each distinct value of a
field. A test holds both ways against each other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool

from dsearch.index.fields import FieldColumn, Fields
from dsearch.store.filters import All, Compares, Equals, Exists, Filter, Not, Scalar, Some

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}


def matching(tree: Filter, fields: Fields) -> Bool[np.ndarray, " documents"] | None:
    """Which documents a filter lets through; None where it names a field that is not kept.

    Raises:
        CorruptData: the files of a field do not fit each other.
    """
    match tree:
        case All(parts) | Some(parts):
            found = [matching(part, fields) for part in parts]
            known = [one for one in found if one is not None]
            if len(known) < len(found):
                return None
            join = np.logical_and if isinstance(tree, All) else np.logical_or
            return join.reduce(known)
        case Not(part):
            held = matching(part, fields)
            return None if held is None else ~held
        case Exists(keys):
            column = fields.column(keys)
            return None if column is None else column.there()
        case Equals(keys, operands):
            return _having(fields.column(keys), _one_of(operands))
        case Compares(keys, order, operand):
            return _having(fields.column(keys), _ordered(_ORDERS[order], operand))


def _having(column: FieldColumn | None, test: Callable[[Any], bool]) -> Bool[np.ndarray, " documents"] | None:
    if column is None:
        return None
    return column.having(np.fromiter(map(test, column.values), bool, len(column.values)))


def _one_of(operands: tuple[Scalar, ...]) -> Callable[[Any], bool]:
    """By type as well: 1 is not true, but it is 1.0."""
    wanted = {(_type(operand), operand) for operand in operands}
    return lambda value: not isinstance(value, list) and (_type(value), value) in wanted


def _ordered(order: Callable[[Any, Any], bool], operand: str | int | float) -> Callable[[Any], bool]:
    kind = _type(operand)
    return lambda value: not isinstance(value, list) and _type(value) is kind and order(value, operand)


def _type(value: Scalar) -> type:
    """float for every number: texts, numbers, booleans and null never meet each other's conditions."""
    return float if type(value) is int else type(value)

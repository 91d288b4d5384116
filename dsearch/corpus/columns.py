"""Types of a table's columns: numbers and booleans that CSV writes as text.

A column is a number if each of its cells in the first 1,000 rows is empty or a number as JSON writes it (`7`,
`-1.5`, `2e3`; not `007`, `1,5`, `+3`), a boolean if each is empty, `true` or `false`, otherwise text. A later
cell that does not fit stays text. An empty cell of a number or boolean column is an absent field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from dsearch.errors import InvalidRequest

ColumnType = Literal["text", "number", "boolean"]

DECIDING_ROWS = 1000
_DECIDING_CHARACTERS = 1 << 22  # of all cells: rows may be long

_KINDS: dict[str, ColumnType] = {"text": "text", "number": "number", "boolean": "boolean"}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_BOOLEANS = {"true": True, "false": False}


def parse_types(texts: Iterable[str]) -> dict[str, ColumnType]:
    """Parse declarations `price=number`.

    Raises:
        InvalidRequest: no type, or an unknown one.
    """
    types: dict[str, ColumnType] = {}
    for text in texts:
        name, _, wanted = text.rpartition("=")
        kind = _KINDS.get(wanted)
        if not name or kind is None:
            raise InvalidRequest(f"type {text!r}; use COLUMN=TYPE with one of {', '.join(_KINDS)}")
        types[name] = kind
    return types


def typed(value: Any, kind: ColumnType) -> Any:
    """Convert a value to a declared type; one that does not fit is returned unchanged."""
    if kind == "text":
        return _text(value)
    if not isinstance(value, str):
        return value
    cell = value.strip()
    if not cell:
        return None
    if kind == "boolean":
        return _BOOLEANS.get(cell.lower(), value)
    number = _number(cell)
    return value if number is None else number


def typed_rows(
    rows: Iterable[tuple[int, dict[str, str]]], declared: Mapping[str, ColumnType], untyped: set[str | None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Convert the cells of a table by the types of its columns.

    Args:
        rows: number and cells of each row, by column.
        declared: types of columns that are not decided by their cells.
        untyped: columns that stay text: id, title, text and value.
    """
    first: list[tuple[int, dict[str, str]]] = []
    characters = 0
    rest = iter(rows)
    for number, row in rest:
        first.append((number, row))
        characters += sum(map(len, row.values()))
        if len(first) == DECIDING_ROWS or characters > _DECIDING_CHARACTERS:
            break
    columns = first[0][1] if first else {}
    types: dict[str, ColumnType] = {
        column: declared.get(column) or _type_of(row[column] for _, row in first)
        for column in columns
        if column not in untyped
    }
    converted: dict[str, ColumnType] = {column: kind for column, kind in types.items() if kind != "text"}
    for number, row in _chain(first, rest):
        record: dict[str, Any] = dict(row)
        for column, kind in converted.items():
            value = typed(record[column], kind)
            if value is None:
                del record[column]
            else:
                record[column] = value
        yield number, record


def _chain(
    first: list[tuple[int, dict[str, str]]], rest: Iterator[tuple[int, dict[str, str]]]
) -> Iterator[tuple[int, dict[str, str]]]:
    yield from first
    first.clear()
    yield from rest


def _type_of(cells: Iterable[str]) -> ColumnType:
    possible: set[ColumnType] = {"number", "boolean"}
    empty = True
    for cell in map(str.strip, cells):
        if not cell:
            continue
        empty = False
        if cell.lower() not in _BOOLEANS:
            possible.discard("boolean")
        if _number(cell) is None:
            possible.discard("number")
        if not possible:
            return "text"
    return "text" if empty else possible.pop()


def _number(cell: str) -> int | float | None:
    match = _NUMBER.fullmatch(cell)
    if match is None or len(cell) > 32:
        return None
    if match[1] is None and match[2] is None:
        whole = int(cell)
        return whole if -(2**63) <= whole < 2**63 else None
    number = float(cell)
    return number if abs(number) != float("inf") else None


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value

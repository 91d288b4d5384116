r"""Filters: conditions on metadata as JSON, checked once and converted to a small typed tree, then to SQL.

    {"year": {"gte": 1990, "lt": 2000}, "or": [{"tags": {"in": ["x", "y"]}}, {"not": {"lang": {"eq": "en"}}}]}

All entries of an object must hold. An entry is `and` or `or` with a list of filters, `not` with one filter,
or a field with its conditions (all must hold), or with one value, which it has to equal: `{"lang": "en"}`:

| condition | holds if the field's value |
|---|---|
| `eq`, `in` | is that string, number, boolean or null; one of those in the list |
| `ne`, `nin` | does not meet `eq`, `in`; documents without the field match |
| `gt`, `gte`, `lt`, `lte` | is of the operand's type (number or string, by code point) and lies so |
| `exists` | is present (true; null too) or absent (false) |

Types matter: 1 is not "1", true is not 1, null is not an absent field; 1 and 1.0 are the same number. A list
meets a condition if any element does (nested lists and objects are ignored). `author.name` is the key `name`
of the object `author`; a backslash escapes the next character, so `dc\.title` is one key, and `\or` a field
named "or". A NUL in a stored string ends it.

As SQL over the JSON in column `metadata` a filter is a condition that is 0 or 1, never NULL. The SQL text
contains no part of a filter: paths and operands are bound. Numbers are bound as JSON, so that SQLite parses
those of filters and documents alike.
"""

from __future__ import annotations

import math
import operator
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
from jaxtyping import Int64

from dsearch.declared import suggestion
from dsearch.errors import InvalidRequest, amount
from dsearch.search_options import MAX_FIELD_CHARACTERS
from dsearch.store.sqlite.digest import canonical_json
from dsearch.store.sqlite.schema import read_state
from dsearch.store.validate import MAX_METADATA_DEPTH
from dsearch.types import ROOT_KEYS, Document

MAX_DEPTH = 16
MAX_CONDITIONS = 256
MAX_OPERANDS = 10_000
MAX_OPERAND_CHARACTERS = 4096

Scalar = str | int | float | bool | None
Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComparisonOperator:
    """Comparison of a stored value with an operand of its type: both numbers, or both strings.

    A new operator is an entry of `COMPARISONS`; SQL and the fields of a generation take both forms from here.

    Attributes:
        holds: (value, operand) → True if the value meets the condition.
        sql: the same condition in SQLite, with the places {value} and {operand}.
        texts_only: True to refuse numbers as operands.
    """

    holds: Callable[[Any, Any], bool]
    sql: str
    texts_only: bool = False


COMPARISONS: dict[str, ComparisonOperator] = {
    "gt": ComparisonOperator(operator.gt, "{value} > {operand}"),
    "gte": ComparisonOperator(operator.ge, "{value} >= {operand}"),
    "lt": ComparisonOperator(operator.lt, "{value} < {operand}"),
    "lte": ComparisonOperator(operator.le, "{value} <= {operand}"),
}


@dataclass(frozen=True, slots=True)
class Equals:
    """The value at `keys`, or an element of the list there, is one of `operands`."""

    keys: Keys
    operands: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Compares:
    """The value at `keys`, or an element of the list there, has the operand's type and compares so.

    `order` is a name of `COMPARISONS`.
    """

    keys: Keys
    order: str
    operand: str | int | float


@dataclass(frozen=True, slots=True)
class Exists:
    """There is a value at `keys`."""

    keys: Keys


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every part holds."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one part holds."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """The part does not hold."""

    part: Filter


Filter = Equals | Compares | Exists | AllOf | AnyOf | Negation


def parse_filter(condition: object, *, roots: bool = False) -> Filter:
    """Check a filter from JSON; a parsed one is returned unchanged.

    Only with `roots` may it name the folder that documents came from. At most 16 levels, 256 conditions and
    10,000 operands. Raises InvalidRequest, which names the place, the value and what is allowed.
    """
    if isinstance(condition, Filter):
        return condition
    return _Parser(roots).filter(condition, "filter", MAX_DEPTH)


def filter_of(condition: object) -> Filter | None:
    """Check a filter of a search, as `parse_filter`; None without one and for `{}`, which all meet."""
    return None if condition is None or condition == {} else parse_filter(condition)


def value_at(metadata: Mapping[str, Any], keys: Keys) -> Any:
    """Return the value of a field; None where it is absent."""
    value: Any = metadata
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = cast("Mapping[str, Any]", value)[key]
    return value


def parse_field(field: str, where: str = "field", *, roots: bool = False) -> Keys:
    """Split a dotted path into keys; raises InvalidRequest, without `roots` also for `ROOT_KEYS`."""
    if len(field) > MAX_FIELD_CHARACTERS:
        raise _refused(
            where, f"a field of {amount(len(field), 'character')}", f"use at most {MAX_FIELD_CHARACTERS}"
        )
    keys = [""]
    characters = iter(field)
    for character in characters:
        if character == ".":
            keys.append("")
        else:
            keys[-1] += next(characters, "") if character == "\\" else character
    for key in keys:
        if not key:
            raise _refused(
                where, f"the field {field[:80]!r} with an empty key", "join keys by single dots: a.b"
            )
        if any(character in '"\\' or character < " " for character in key) or not _is_text(key):
            raise _refused(
                where,
                f"the field {field[:80]!r}",
                "quotes, backslashes, control characters and lone surrogates cannot be asked for in keys",
            )
    if len(keys) > MAX_METADATA_DEPTH:
        raise _refused(
            where,
            f"a field of {amount(len(keys), 'key')}",
            f"metadata has at most {MAX_METADATA_DEPTH} levels",
        )
    if not roots and tuple(keys[: len(ROOT_KEYS)]) == ROOT_KEYS:
        raise _refused(
            where,
            f"the field {field[:80]!r}",
            "only deletions may name it; use path or folder, which lie in it",
        )
    return tuple(keys)


class _Parser:
    """Parser with counters, because the limits apply to a filter as a whole."""

    def __init__(self, roots: bool) -> None:
        self.roots = roots
        self.conditions = 0
        self.operands = 0
        self._makers: dict[str, Callable[[Keys, object, str], Filter]] = {
            "eq": lambda keys, operand, where: Equals(keys, (self._scalar(operand, where),)),
            "ne": lambda keys, operand, where: Negation(Equals(keys, (self._scalar(operand, where),))),
            **{name: partial(self._compares, name) for name in COMPARISONS},
            "in": lambda keys, operand, where: Equals(keys, self._scalars(operand, where)),
            "nin": lambda keys, operand, where: Negation(Equals(keys, self._scalars(operand, where))),
            "exists": self._exists,
        }

    def filter(self, condition: object, where: str, depth: int) -> Filter:
        if depth == 0:
            raise _refused(where, "more nesting", f"use at most {MAX_DEPTH} levels")
        entries = _object(condition, where, 'use an object such as {"year": {"gte": 1990}}')
        if not entries:
            raise _refused(where, "an empty object", "leave the filter out to have every document")
        parts = [self._entry(key, entry, f"{where}.{key[:80]}", depth) for key, entry in entries.items()]
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _entry(self, key: str, entry: object, where: str, depth: int) -> Filter:
        if key == "not":
            return Negation(self.filter(entry, where, depth - 1))
        if key in ("and", "or"):
            filters = cast("list[object]", entry) if isinstance(entry, list) else []
            if not filters:
                raise _refused(where, _excerpt(cast("object", entry)), "use a list of one or more filters")
            parts = tuple(self.filter(part, f"{where}[{i}]", depth - 1) for i, part in enumerate(filters))
            return AllOf(parts) if key == "and" else AnyOf(parts)
        return self._conditions(parse_field(key, where, roots=self.roots), entry, where)

    def _conditions(self, keys: Keys, entry: object, where: str) -> Filter:
        names = ", ".join(self._makers)
        allowed = f'use a value, or an object of conditions ({names}), such as {{"gte": 1}}'
        if entry is None or isinstance(entry, str | int | float):
            entry = {"eq": entry}
        conditions = _object(entry, where, allowed)
        if not conditions:
            raise _refused(where, "an empty object", allowed)
        parts: list[Filter] = []
        for name, operand in conditions.items():
            if name not in self._makers:
                raise _refused(
                    where, f"the condition {name[:80]!r}", f"use one of {names}; nested keys are a.b"
                )
            self.conditions += 1
            if self.conditions > MAX_CONDITIONS:
                raise _refused(
                    where, "more conditions", f"use at most {MAX_CONDITIONS} in a filter; in takes lists"
                )
            parts.append(self._makers[name](keys, operand, f"{where}.{name}"))
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _scalars(self, operand: object, where: str) -> tuple[Scalar, ...]:
        if not isinstance(operand, list | tuple):
            raise _refused(where, _excerpt(operand), "use a list of strings, numbers, booleans or nulls")
        elements = enumerate(cast("list[object]", operand))
        return tuple(self._scalar(element, f"{where}[{i}]") for i, element in elements)

    def _scalar(self, operand: object, where: str) -> Scalar:
        self.operands += 1
        if self.operands > MAX_OPERANDS:
            raise _refused(where, "more operands", f"use at most {MAX_OPERANDS} in a filter")
        if operand is None or isinstance(operand, bool):
            return operand
        if isinstance(operand, str):
            if len(operand) > MAX_OPERAND_CHARACTERS:
                raise _refused(
                    where, f"{amount(len(operand), 'character')}", f"use at most {MAX_OPERAND_CHARACTERS}"
                )
            if not _is_text(operand):
                raise _refused(where, "a lone surrogate", "use text; no document has one")
            return operand
        if isinstance(operand, int) and -(2**63) <= operand < 2**63:
            return operand
        if isinstance(operand, float) and math.isfinite(operand):
            return operand
        raise _refused(
            where, _excerpt(operand), "use a string, a finite number (integers of 64 bits), a boolean or null"
        )

    def _compares(self, name: str, keys: Keys, operand: object, where: str) -> Filter:
        scalar = self._scalar(operand, where)
        if COMPARISONS[name].texts_only and not isinstance(scalar, str):
            raise _refused(where, _excerpt(operand), "use a string")
        if scalar is None or isinstance(scalar, bool):
            raise _refused(where, _excerpt(operand), "only numbers and strings have an order")
        return Compares(keys, name, scalar)

    def _exists(self, keys: Keys, operand: object, where: str) -> Filter:
        if not isinstance(operand, bool):
            raise _refused(where, _excerpt(operand), "use true or false")
        return Exists(keys) if operand else Negation(Exists(keys))


def _object(value: object, where: str, allowed: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _refused(where, _excerpt(value), allowed)
    for key in cast("dict[object, object]", value):
        if not isinstance(key, str):
            raise _refused(where, f"the key {key!r:.80}", "JSON keys are strings")
    return cast("dict[str, object]", value)


def _is_text(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _excerpt(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 2**64 else "an integer of over 64 bits"
    return text if len(text) <= 80 else text[:80] + "…"


def _refused(where: str, value: str, allowed: str) -> InvalidRequest:
    return InvalidRequest(f"{where}: {value}; {allowed}")


SAMPLE = 200  # documents whose fields a suggestion is looked up in


def compared_fields(tree: Filter) -> Iterator[Keys]:
    """Fields whose values a filter compares; those of negations match documents without the field."""
    match tree:
        case Equals(keys) | Compares(keys):
            yield keys
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from compared_fields(part)
        case _:
            return


def names_of(documents: Iterable[Document]) -> list[str]:
    """Fields of the documents' metadata as dotted paths, sorted."""
    names: set[str] = set()
    for document in documents:
        names.update(_paths(document.metadata))
    return sorted(names)


def meant_among(field: str, documents: Sequence[Document]) -> str:
    """Suggest a field of the documents for one that none of them has, in brackets; empty if none is near."""
    names = names_of(documents[:SAMPLE])
    return "" if field in names else suggestion(field, names)


def _paths(metadata: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in metadata.items():
        yield before + name
        if isinstance(value, Mapping):
            yield from _paths(cast("Mapping[str, Any]", value), f"{before}{name}.")


def compile_filter(tree: Filter) -> tuple[str, list[str]]:
    """Return the condition for a WHERE clause over table `document`, and its parameters from ?1 on."""
    parameters: list[str] = []
    return _condition(tree, parameters), parameters


def condition_of(tree: Filter | None) -> tuple[str, list[str]]:
    """As `compile_filter`; TRUE without a filter."""
    return ("TRUE", []) if tree is None else compile_filter(tree)


def json_path(keys: Keys) -> str:
    """Return SQLite's path to these keys, which have neither quotes nor backslashes."""
    return "$" + "".join(f'."{key}"' for key in keys)


def _condition(tree: Filter, parameters: list[str]) -> str:
    match tree:
        case AllOf(parts):
            return "(" + " AND ".join(_condition(part, parameters) for part in parts) + ")"
        case AnyOf(parts):
            return "(" + " OR ".join(_condition(part, parameters) for part in parts) + ")"
        case Negation(part):
            return f"(NOT {_condition(part, parameters)})"
        case Exists(keys):
            return f"(json_type(metadata, {_bind(json_path(keys), parameters)}) IS NOT NULL)"
        case Equals(keys, operands):
            return _any_element(keys, _equalities(operands, parameters), parameters)
        case Compares(keys, order, operand):
            if isinstance(operand, str):
                return _any_element(
                    keys, [("'text'", _ordered(order, _bind(operand, parameters)))], parameters
                )
            number = f"json_extract({_bind(canonical_json(operand), parameters)}, '$')"
            return _any_element(keys, [("'integer', 'real'", _ordered(order, number))], parameters)


def _ordered(order: str, operand: str) -> str:
    """Test of a value that `_of_type` fills in: {value} stays, the operand is bound already."""
    return COMPARISONS[order].sql.format(value="{value}", operand=operand)


def _equalities(operands: tuple[Scalar, ...], parameters: list[str]) -> list[tuple[str, str]]:
    """Yield for each JSON type of the operands its names in SQLite and the test of a value."""
    tests: list[tuple[str, str]] = []
    texts = [operand for operand in operands if isinstance(operand, str)]
    numbers = [o for o in operands if isinstance(o, int | float) and not isinstance(o, bool)]
    if texts:
        # SQLite ends a string at a NUL, in documents too, so an operand with one never matches.
        whole = [text for text in texts if "\0" not in text]
        tests.append(("'text'", _member(whole, parameters)))
    if numbers:
        tests.append(("'integer', 'real'", _member(numbers, parameters)))
    for literal, name in ((True, "'true'"), (False, "'false'"), (None, "'null'")):
        if any(operand is literal for operand in operands):
            tests.append((name, "1"))
    return tests


def _member(operands: list[str] | list[int | float], parameters: list[str]) -> str:
    return f"{{value}} IN (SELECT value FROM json_each({_bind(canonical_json(operands), parameters)}))"


def _any_element(keys: Keys, tests: list[tuple[str, str]], parameters: list[str]) -> str:
    """SQL condition: the value at `keys`, or an element of the list there, passes the test of its type."""
    if not tests:
        return "0"
    path = _bind(json_path(keys), parameters)
    alone = _of_type(tests, f"json_extract(metadata, {path})")
    element = f"CASE type {_of_type(tests, 'atom')} ELSE 0 END"
    inside = f"EXISTS (SELECT 1 FROM json_each(metadata, {path}) WHERE {element})"
    return f"(CASE json_type(metadata, {path}) {alone} WHEN 'array' THEN {inside} ELSE 0 END)"


def _of_type(tests: list[tuple[str, str]], value: str) -> str:
    return " ".join(
        f"WHEN {kind} THEN {test.format(value=value)}" for kinds, test in tests for kind in kinds.split(", ")
    )


def _bind(value: str, parameters: list[str]) -> str:
    parameters.append(value)
    return f"?{len(parameters)}"


_RECENT = 8  # filters; 8 MB each in a collection of a million documents

# NOT INDEXED: read in the order of rows, not of ids.
LIVE = "FROM document NOT INDEXED WHERE deleted IS NULL"


class RowMatches:
    """Cache of the rows that the last few filters match, deleted ones included.

    A row is one version of a document and never changes, so cached results stay valid: after a write only the
    new rows are evaluated.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows_of: OrderedDict[str, tuple[int, Int64[np.ndarray, " rows"]]] = OrderedDict()

    def rows(
        self, connection: sqlite3.Connection, tree: Filter, after: int = 0
    ) -> Int64[np.ndarray, " rows"]:
        """Return all matching rows above `after`, ascending; the array is shared and read-only."""
        last = read_state(connection).last_row
        key = f"{after} {tree!r}"  # by repr: 1 and True are equal in Python
        with self._lock:
            looked_at, rows = self._rows_of.get(key, (after, np.empty(0, np.int64)))
        if looked_at < last:
            condition, parameters = compile_filter(tree)
            query = (
                f"SELECT row FROM document NOT INDEXED WHERE row > {looked_at} AND {condition} ORDER BY row"
            )
            rows = np.concatenate([rows, _rows(connection, query, parameters)])
            rows.setflags(write=False)
        with self._lock:
            if looked_at <= last:
                self._rows_of[key] = last, rows
            self._rows_of.move_to_end(key)
            while len(self._rows_of) > _RECENT:
                self._rows_of.popitem(last=False)
        return rows[: np.searchsorted(rows, last, "right")]


def _rows(connection: sqlite3.Connection, query: str, parameters: list[str]) -> Int64[np.ndarray, " rows"]:
    return np.fromiter((row for (row,) in connection.execute(query, parameters)), dtype=np.int64)


def live_rows(connection: sqlite3.Connection, tree: Filter) -> list[int]:
    """All live rows that match, ascending."""
    condition, parameters = compile_filter(tree)
    records = connection.execute(f"SELECT row {LIVE} AND {condition} ORDER BY row", parameters)
    return [row for (row,) in records]

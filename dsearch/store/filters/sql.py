"""Filters as SQL over the JSON in column `metadata`: a condition that is 0 or 1, never NULL.

The SQL text contains no part of a filter: paths and operands are bound. Numbers are bound as JSON, so that
SQLite parses those of filters and documents alike.
"""

from __future__ import annotations

from dsearch.store.filters.parse import (
    COMPARISONS,
    AllOf,
    AnyOf,
    Compares,
    Equals,
    Exists,
    Filter,
    Keys,
    Negation,
    Scalar,
)
from dsearch.store.sqlite.digest import canonical_json


def compile_filter(tree: Filter) -> tuple[str, list[str]]:
    """Return the condition for a WHERE clause over table `document`, and its parameters from ?1 on."""
    parameters: list[str] = []
    return _condition(tree, parameters), parameters


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

"""A bound on the errors of one request: the first are collected, the others are never built.

pydantic describes every wrong item of a list. A body of 8 MiB has four million items, and their descriptions
took gigabytes. Here a long list or object is validated piece by piece, up to the piece in which there are
more errors than an answer shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticKnownError, SchemaValidator, core_schema

SHOWN_ERRORS = 100
_PLAIN_PIECE = 256  # items that have one error each at most
_PIECE = 16  # items that may have several: lists, objects
_PLAIN = frozenset({"str", "int", "float", "bool", "any", "literal", "none", "date", "datetime"})
_INNER = ("schema", "items_schema", "keys_schema", "values_schema")


class BoundedErrors:
    """Annotates a list or an object that is a whole body: its errors are bounded."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema, which stops at a number of errors."""
        return _bounded(handler(source), within=False)


def bounded_fields(schema: CoreSchema) -> CoreSchema:
    """The schema of a model with lists and objects in its fields that stop at a number of errors.

    Models among the fields stay as they are: each is bounded where it is declared.
    """
    content = cast("dict[str, Any]", schema)
    kind = content["type"]
    if kind == "model-fields":
        fields = {
            name: {**field, "schema": _bounded(field["schema"], within=False)}
            for name, field in content["fields"].items()
        }
        return cast("CoreSchema", {**content, "fields": fields})
    if "schema" not in content:
        return schema
    return cast("CoreSchema", {**content, "schema": bounded_fields(content["schema"])})


def _bounded(schema: CoreSchema, *, within: bool) -> CoreSchema:
    """The schema with bounded lists and objects; `within` another one, a plain list has one error at most."""
    content = dict(cast("dict[str, Any]", schema))
    kind = content["type"]
    if kind in ("model", "definition-ref"):
        return schema
    container = kind in ("list", "dict")
    for name in _INNER:
        if name in content:
            content[name] = _bounded(content[name], within=within or container)
    if kind == "union":
        content["choices"] = [_choice(choice, within=within) for choice in content["choices"]]
    changed = cast("CoreSchema", content)
    if not container:
        return changed
    plain = _is_plain(content.get("items_schema" if kind == "list" else "values_schema"))
    if plain and kind == "list" and within:
        content["fail_fast"] = True
        return changed
    most = content.get("max_length")
    piece = _PLAIN_PIECE if plain else _PIECE
    if most is not None and most <= piece:
        return changed
    return core_schema.no_info_wrap_validator_function(_Pieces(piece, most), changed)


def _choice(choice: Any, *, within: bool) -> Any:
    """A choice of a union; one that was wrapped keeps the name by which errors call it, `list[float]`."""
    if isinstance(choice, tuple):
        return _bounded(choice[0], within=within), choice[1]
    bounded = _bounded(choice, within=within)
    return (bounded, SchemaValidator(choice).title) if bounded["type"] == "function-wrap" else bounded


def _is_plain(schema: Any) -> bool:
    """Return True if an item has one error at most and holds no further items."""
    if schema is None:
        return True
    if schema["type"] in _PLAIN:
        return True
    wrapped = ("nullable", "custom-error", "function-after")
    return schema["type"] in wrapped and _is_plain(schema["schema"])


class _Pieces:
    """Validates a long list or object in pieces.

    Args:
        piece: number of items that are validated together.
        most: number of items that are allowed.
    """

    def __init__(self, piece: int, most: int | None):
        self._piece, self._most = piece, most

    def __call__(self, value: Any, validate: core_schema.ValidatorFunctionWrapHandler) -> Any:
        """The validated value.

        Raises:
            ValidationError: with the errors of the first pieces, until there are more than are shown.
        """
        if not isinstance(value, list | dict):
            return validate(value)
        items = cast("list[Any] | dict[str, Any]", value)
        if self._most is not None and len(items) > self._most:
            kind = "List" if isinstance(items, list) else "Dictionary"
            lengths = {"field_type": kind, "max_length": self._most, "actual_length": len(items)}
            raise PydanticKnownError("too_long", lengths)
        if len(items) <= self._piece:
            return validate(items)
        valid: list[Any] | dict[str, Any] = [] if isinstance(items, list) else {}
        errors = seen = 0
        for part in _parts(items, self._piece):
            seen += len(part)
            try:
                checked = validate(part)
            except ValidationError as error:
                errors += error.error_count()
                if errors > SHOWN_ERRORS:
                    break
                continue
            if not errors:
                valid.extend(checked) if isinstance(valid, list) else valid.update(checked)
        if errors:
            return validate(_first(items, seen))  # once more, so that places count from the whole's beginning
        return valid


def _parts(items: list[Any] | dict[str, Any], size: int) -> Iterator[list[Any] | dict[str, Any]]:
    if isinstance(items, list):
        yield from (items[start : start + size] for start in range(0, len(items), size))
        return
    pairs = iter(items.items())
    while part := dict(islice(pairs, size)):
        yield part


def _first(items: list[Any] | dict[str, Any], count: int) -> list[Any] | dict[str, Any]:
    return items[:count] if isinstance(items, list) else dict(islice(items.items(), count))

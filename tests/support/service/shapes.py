"""Answers compared with the shapes that the OpenAPI document shows."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from jsonschema.validators import validator_for
from pydantic import TypeAdapter

from dsearch.service.schemas.descriptions import describe

T = TypeVar("T")


def checked(shape: type[T], content: Any) -> T:
    """The answer; fails if it has a member that the shape lacks, or lacks one that the shape requires."""
    adapter, validator = _checks_of(shape)
    validator.validate(content)
    return adapter.validate_python(content, extra="forbid")


@cache  # making both takes fifty times as long as a check
def _checks_of(shape: type[T]) -> tuple[TypeAdapter[T], Any]:
    adapter = TypeAdapter(shape)
    schema = adapter.json_schema(mode="serialization")
    describe({shape.__name__: schema, **schema.get("$defs", {})})
    kind = validator_for(schema)
    kind.check_schema(schema)
    return adapter, kind(schema)

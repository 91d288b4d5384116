"""Answers compared with the shapes that the OpenAPI document shows."""

from __future__ import annotations

from typing import Any, TypeVar

import jsonschema
from pydantic import TypeAdapter

from dsearch.service.schemas.descriptions import describe

T = TypeVar("T")


def checked(shape: type[T], content: Any) -> T:
    """The answer; fails if it has a member that the shape lacks, or lacks one that the shape requires."""
    adapter = TypeAdapter(shape)
    schema = adapter.json_schema(mode="serialization")
    describe({shape.__name__: schema, **schema.get("$defs", {})})
    jsonschema.validate(content, schema)
    return adapter.validate_python(content, extra="forbid")

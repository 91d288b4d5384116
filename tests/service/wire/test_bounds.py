"""Bounds and defaults of requests are promises: those that are written down in bounds.txt are kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI

PROMISED = Path(__file__).with_name("bounds.txt")
_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "minLength": "characters ≥",
    "maxLength": "characters ≤",
    "minItems": "entries ≥",
    "maxItems": "entries ≤",
}


def _bounds(schema: Any) -> Iterator[str]:
    """The bounds of a field, those of its entries and alternatives among them."""
    yield from (f"{sign} {schema[name]}" for name, sign in _BOUNDS.items() if name in schema)
    for part in ("anyOf", "oneOf", "allOf"):
        for choice in schema.get(part, ()):
            yield from _bounds(choice)
    if "items" in schema:
        yield from (f"each {bound}" for bound in _bounds(schema["items"]))


def _line(name: str, schema: dict[str, Any]) -> str | None:
    """A field with its bounds and its default; None without any."""
    bounds = list(_bounds(schema))
    if schema.get("default") is not None:
        bounds.append(f"default {schema['default']!r}")
    return f"{name}: {', '.join(bounds)}" if bounds else None


def _bodies(document: dict[str, Any]) -> set[str]:
    """Names of the schemas that bodies of requests are made of."""
    found: set[str] = set()

    def look(part: Any) -> None:
        if isinstance(part, list):
            for item in part:
                look(item)
        elif isinstance(part, dict):
            name = str(part.get("$ref", "")).removeprefix("#/components/schemas/")
            if name and name not in found:
                found.add(name)
                look(document["components"]["schemas"][name])
            for item in part.values():
                look(item)

    for methods in document["paths"].values():
        look([method.get("requestBody", {}) for method in methods.values()])
    return found


def test_bounds_and_defaults_are_those_that_are_written_down(app: FastAPI) -> None:
    document = app.openapi()
    lines = []
    for name in sorted(_bodies(document)):
        fields = document["components"]["schemas"][name].get("properties", {})
        lines += [_line(f"{name}.{field}", schema) for field, schema in sorted(fields.items())]
    for path, methods in sorted(document["paths"].items()):
        for method, operation in sorted(methods.items()):
            lines += [
                _line(f"{method.upper()} {path} {parameter['name']}", parameter["schema"])
                for parameter in operation.get("parameters", ())
            ]
    now = {line.partition(": ")[0]: line for line in lines if line}
    promised = PROMISED.read_text(encoding="utf-8").splitlines()
    broken = {line: now.get(line.partition(": ")[0], "gone") for line in promised if line not in now.values()}
    assert not broken, "change bounds.txt if that is meant:\n" + "\n".join(
        f"promised {line}\n     now {other}" for line, other in broken.items()
    )
    assert len(promised) > 300

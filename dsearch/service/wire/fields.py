"""Base of request models: fields that say what is allowed, objects that reject unknown names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from dsearch.declared import suggestion

SHOWN = 80  # characters of a given value that a message repeats


@dataclass(frozen=True, slots=True)
class allowed:  # it is read as an annotation
    """Annotates a field: whatever its type refuses is answered with `use {what}`.

    A misspelt one of the `choices` is answered with that one as well.
    """

    what: str
    choices: Sequence[str] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The field's schema, whose errors are replaced; by pydantic-core, without a call of Python."""
        return core_schema.custom_error_schema(
            handler(source),
            "not_allowed",
            custom_error_message="use {allowed}",
            custom_error_context={"allowed": self.what, "choices": " ".join(self.choices)},
        )


def encodable(text: str) -> str:
    """The text, if UTF-8 has it: a lone surrogate is no text, and its error is a ValueError."""
    text.encode()
    return text


def listed(names: Iterable[str]) -> str:
    """Names as a message lists them: a, b or c."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def repr_of(value: Any) -> str:
    """A given value as a message repeats it: as Python writes it, cut when it is long."""
    if isinstance(value, list | dict) and len(value) > SHOWN:
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


class RequestModel(BaseModel):
    """An object that a client sends: unknown names are refused, and the message lists the known ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, content: Any) -> Any:
        names = _field_names(cls)
        if isinstance(content, dict) and (unknown := [str(name) for name in content if name not in names]):
            named = cls.model_fields.get(unknown[0])  # an own name, where the request has an alias of it
            meant = suggestion(unknown[0], names) if named is None else f" (did you mean {named.alias}?)"
            raise PydanticCustomError(
                "unknown_field",
                "unknown field {unknown}{meant}; use {known}",
                {
                    "unknown": ", ".join(repr_of(name) for name in unknown[:3]),
                    "meant": meant,
                    "known": ", ".join(names),
                },
            )
        return content


@cache
def _field_names(model: type[BaseModel]) -> dict[str, None]:
    """The names of its fields, in their order: looked up at every request."""
    return dict.fromkeys(field.alias or name for name, field in model.model_fields.items())

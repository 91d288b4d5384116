"""Options that are declared once: as fields of a dataclass, each with its default, help and allowed values.

Command line, HTTP schema and clients derive theirs from the declarations: of jobs (`dsearch/jobs.py`), of
searches (`dsearch/search_options.py`) and of attention (`dsearch/attention_options.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from dsearch.errors import InvalidRequest, amount

Spell = Callable[[str, object], str]
_LONGEST = 80  # characters of a misspelt name that are compared


@dataclass(frozen=True, slots=True)
class Option:
    """The description of one option.

    Attributes:
        help: one sentence, without a full stop.
        choices: the texts that are allowed; empty for any.
        low, high: bounds of a number; `inside` excludes the bounds themselves.
        flag: its name on the command line, where that is another one; several with a space between them.
        alias: its name in JSON, where that is another one.
        longest: characters of a text.
        pattern: regular expression that a text has to match.
        allowed: the allowed values in words, where those made of the above are not enough.
        cli: whether the command line has it.
        ranks: whether it decides the hits of a search and their order; False for what only shows them.
        json: further members of its JSON schema.
    """

    help: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    inside: bool = False
    flag: str | None = None
    alias: str | None = None
    longest: int | None = None
    pattern: str | None = None
    allowed: str | None = None
    cli: bool = True
    ranks: bool = True
    json: dict[str, Any] | None = None

    def allows(self, value: Any) -> bool:
        """True if a value of the right type lies within the bounds."""
        if self.choices:
            return value in self.choices
        if isinstance(value, str):
            return 0 < len(value) <= (self.longest or len(value))
        if self.low is None or self.high is None or isinstance(value, bool):
            return True
        if self.inside:
            return self.low < value < self.high
        return self.low <= value <= self.high


def allowed_values(field: dataclasses.Field[Any], about: Option) -> str:
    """The values that an option may have, in words."""
    if about.allowed is not None:
        return about.allowed
    if about.choices:
        return ("one of " if len(about.choices) > 1 else "") + ", ".join(about.choices)
    if about.longest is not None:
        return f"a text of 1 to {amount(about.longest, 'character')}"
    if about.low is None:
        return "true or false"
    if type_of(field)[0] is int:
        return f"an integer from {about.low:g} to {about.high:g}"
    between = "between {:g} and {:g}" if about.inside else "from {:g} to {:g}"
    return "a number " + between.format(about.low, about.high)


def suggestion(name: str, names: Iterable[str]) -> str:
    """Suggest one of the names for a misspelt one, in brackets; empty if none is near."""
    near = get_close_matches(name[:_LONGEST], list(names), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def option(default: Any, help: str, **about: Any) -> Any:
    """Declare a field; arguments as for `Option`."""
    return dataclasses.field(default=default, metadata={"option": Option(help, **about)})


def options_of(declaration: type) -> dict[str, tuple[dataclasses.Field[Any], Option]]:
    """The fields of a dataclass that are options, by name; data (queries, filters, …) are not among them."""
    return {
        field.name: (field, field.metadata["option"])
        for field in dataclasses.fields(declaration)
        if "option" in field.metadata
    }


def type_of(field: dataclasses.Field[Any]) -> tuple[type, bool]:
    """The type of an option, and whether it may be None."""
    name, _, optional = str(field.type).partition(" | ")
    return {"bool": bool, "int": int, "float": float}.get(name, str), bool(optional)


def has_type(value: object, field: dataclasses.Field[Any]) -> bool:
    """True if a value has the type of an option."""
    plain, optional = type_of(field)
    if value is None or isinstance(value, bool):
        return optional if value is None else plain is bool
    return isinstance(value, (int, float) if plain is float else plain)


def check_keywords(declaration: type, keywords: Mapping[str, Any], further: Iterable[str] = ()) -> None:
    """Refuse keyword arguments that a dataclass of options does not have, of another type, or out of bounds.

    Args:
        declaration: the dataclass.
        keywords: the arguments; None leaves an option at its default.
        further: names that are allowed beside its fields.

    Raises:
        InvalidRequest: the message names the options, or what is allowed.
    """
    declared = options_of(declaration)
    names = [*(field.name for field in dataclasses.fields(declaration)), *further]
    for name, value in keywords.items():
        if name not in names:
            near = suggestion(name, names)
            raise InvalidRequest(f"unknown option {name!r}{near}; use {', '.join(names)}")
        if value is None or name not in declared:
            continue
        field, about = declared[name]
        plain = value.item() if hasattr(value, "item") else value  # numbers of NumPy
        fits = has_type(plain, field) and (not isinstance(plain, int | float) or about.allows(plain))
        if not (fits or (about.choices and callable(value))):  # a score of one's own
            raise InvalidRequest(f"{name}={value!r}; use {allowed_values(field, about)}")


def in_python(name: str, value: object = None) -> str:
    """An option as Python and JSON spell it: `scope='full'`, or its name alone."""
    return name if value is None else f"{name}={value!r}"

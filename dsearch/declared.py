"""Options that are declared once: as fields of a dataclass, each with its default, help and allowed values.

Command line, HTTP schema and clients derive theirs from the declarations: of jobs (`dsearch/jobs.py`), of
searches (`dsearch/search_options.py`) and of attention (`dsearch/attention_options.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

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
        joined: whether a list of texts stands for one text with commas between.
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
    joined: bool = False
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


@dataclass(frozen=True, slots=True)
class Values:
    """Annotates the type of a field: the values that a request may give; pydantic checks requests by it.

    Attributes:
        allowed: in words; any other value is answered with `use …`. None: the answer says what is wrong.
        choices: of texts; a misspelt one is answered with that one as well.
        shortest, longest: characters of a text, entries of a list or mapping.
        low, high, above: bounds of a number; `above` is excluded.
        pattern: regular expression that a text has to match.
        before, after: functions that change a value before it is checked, or raise ValueError after it.
        sent: its type in JSON, where Python takes more.
    """

    allowed: str | None = None
    choices: tuple[str, ...] = ()
    shortest: int | None = None
    longest: int | None = None
    low: float | None = None
    high: float | None = None
    above: float | None = None
    pattern: str | None = None
    before: Callable[[Any], Any] | None = None
    after: Callable[[Any], Any] | None = None
    sent: Any = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """The schema of the type, with its bounds and the answer to other values."""
        from pydantic import AfterValidator, BeforeValidator, Field
        from pydantic_core import core_schema

        bounds: dict[str, Any] = {
            "min_length": self.shortest,
            "max_length": self.longest,
            "ge": self.low,
            "le": self.high,
            "gt": self.above,
            "pattern": self.pattern,
        }
        given = {name: bound for name, bound in bounds.items() if bound is not None}
        kind = in_json(source if self.sent is None else self.sent)
        annotations = (
            self.before and BeforeValidator(self.before),
            Field(**given) if given else None,
            self.after and AfterValidator(self.after),
        )
        for annotation in filter(None, annotations):
            kind = Annotated[kind, annotation]
        plain = self.sent is None and not any(annotations)
        schema = handler(source) if plain else handler.generate_schema(kind)
        if self.allowed is None:
            return schema
        return core_schema.custom_error_schema(
            schema,
            "not_allowed",
            custom_error_message="use {allowed}",
            custom_error_context={"allowed": self.allowed, "choices": " ".join(self.choices)},
        )


def in_json(kind: Any, model: Callable[[type], Any] = lambda shape: shape) -> Any:
    """The type that a value of a request has in JSON: lists for sequences, objects for mappings.

    Args:
        kind: its type in Python.
        model: what takes the place of a dataclass.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        plain, *about = arguments
        kept = [each for each in about if not isinstance(each, Values)]
        if values := [each for each in about if isinstance(each, Values)]:
            kept.append(_joined(values, model))
        return Annotated[(in_json(plain, model), *kept)]  # type: ignore[return-value]
    parts = [in_json(each, model) for each in arguments] if origin is not Literal else []
    if origin in (Union, UnionType):
        return Union[tuple(parts)]  # noqa: UP007
    if origin in (list, Sequence):
        return list[parts[0]]
    if origin in (dict, Mapping):
        return dict[parts[0], parts[1]]
    if kind is float:
        return Annotated[float, _FINITE]
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return model(kind)
    return Any if kind is object else kind


def _joined(values: Sequence[Values], model: Callable[[type], Any]) -> Values:
    """One for several, of which later ones narrow earlier ones."""
    parts: dict[str, Any] = {}
    for each in values:
        parts |= {
            field.name: part
            for field in dataclasses.fields(each)
            if (part := getattr(each, field.name)) != field.default
        }
    if "sent" in parts:
        parts["sent"] = in_json(parts["sent"], model)
    return Values(**parts)


IN_PLACE = "in place"
"""Annotates a field of a request whose own fields take its place in JSON."""
NOT_SENT = "not sent"
"""Annotates a field of a request that only Python has."""


class _Finite:
    """Annotates a number: JSON has no infinity, but numbers that are too large."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """The schema of a finite number."""
        return {**handler(source), "allow_inf_nan": False}


_FINITE = _Finite()


def in_python(name: str, value: object = None) -> str:
    """An option as Python and JSON spell it: `scope='full'`, or its name alone."""
    return name if value is None else f"{name}={value!r}"

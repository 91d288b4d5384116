"""Models of requests, made of the declarations of calls: what pydantic checks a body or a URL by."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from dsearch.declared import IN_PLACE, NOT_SENT, Option, Values, allowed_values, in_json, options_of, type_of
from dsearch.fields import QueryText, has_words
from dsearch.operations import Call
from dsearch.search_options import joined_names
from dsearch.service.wire.json import parse
from dsearch.service.wire.requests import RequestModel

Fields = dict[str, tuple[Any, Any]]
FilterText = Annotated[
    str,
    Values(
        'JSON of 2 to 8192 characters, such as {"year":{"gte":1990}}',
        shortest=2,
        longest=8192,
        after=has_words,
    ),
]


class Body(RequestModel):
    """A request in JSON."""

    model_config = ConfigDict(strict=True)


class Parameters(RequestModel):
    """A request in the URL, whose filter is text."""


@cache
def body_of(kind: type[Call[Any]]) -> type[RequestModel] | None:
    """Return the model of a call's body; None if all of its fields stand in the URL."""
    place = kind.place
    fields = _with_options(kind, lambda name: name not in (*place.in_path, *place.query))
    return _model(f"{kind.__name__}Request", fields, kind, Body) if fields else None


@cache
def parameters_of(kind: type[Call[Any]]) -> type[RequestModel] | None:
    """Return the model of the URL's query; of all fields but vectors for a call that has a body otherwise."""
    place = kind.place
    in_query = place.query or tuple(
        name for name in _names(kind) if name not in (*place.in_path, "vector", "vectors")
    )
    fields = _with_options(kind, lambda name: name in in_query or name not in _names(kind))
    if not place.query and "vector" in _names(kind):  # without one there is a text
        fields["query"] = (in_json(QueryText), Field(description=fields["query"][1].description))
    if "filter" in fields:
        given = fields["filter"][1]
        text = Field(None, description=given.description, examples=['{"year": {"gte": 2017}}'])
        fields["filter"] = (Optional[FilterText], text)  # noqa: UP045
    return _model(f"{kind.__name__}Parameters", fields, kind, Parameters) if fields else None


def arguments_of(kind: type[Call[Any]], *as_declared: str, **own: tuple[Any, Any]) -> type[RequestModel]:
    """Return the model of a tool's arguments.

    Args:
        kind: the call that the tool makes.
        as_declared: fields that are those of the call.
        own: types and defaults of the others.
    """
    declared = _with_options(kind)
    fields = {**own, **{name: declared[name] for name in as_declared}}
    return _model(f"{kind.__name__}Arguments", fields, kind, Body)


def call_of(
    kind: type[Call[Any]], in_path: dict[str, Any], given: Iterable[RequestModel | None]
) -> Call[Any]:
    """Return the call that a request describes, with what goes together; fields left out have their defaults.

    Raises:
        InvalidRequest: fields that exclude each other.
        InvalidJson: a filter in the URL that is not JSON.
    """
    values, options, own = in_path, dict[str, Any](), _names(kind)
    for model in given:
        if model is None:
            continue
        content = model.__dict__
        for name in model.model_fields_set:
            value = content[name]
            (values if name in own else options)[name] = (
                _plain(value) if isinstance(value, BaseModel | list) else value
            )
        if isinstance(model, Parameters) and "filter" in model.model_fields_set:
            (values if "filter" in own else options)["filter"] = parse(content["filter"].encode())
    for field, shape in _in_place(kind).items():
        values[field] = shape(**{name: options.pop(name) for name in _names(shape) if name in options})
    if "options" in own:
        values["options"] = options
    call = kind(**values)
    call.check()
    return call


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True, by_alias=True)
    if value and isinstance(value[0], BaseModel):
        return [_plain(each) for each in value]
    return value


@cache
def _names(shape: type[Any]) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(shape))


@cache
def _in_place(kind: type[Any]) -> dict[str, type[Any]]:
    """The fields whose own fields take their place, and their dataclasses."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: get_args(hint)[0] for name, hint in hints.items() if IN_PLACE in get_args(hint)[1:]}


def _with_options(shape: type[Any], wanted: Callable[[str], bool] = lambda _: True) -> Fields:
    """The fields of a request, by name, and those of its options."""
    hints, spread = get_type_hints(shape, include_extras=True), _in_place(shape)
    fields = _fields(shape, lambda name, _: name not in ("options", *spread) and wanted(name))
    for inner in spread.values():
        fields |= _fields(inner, lambda *_: True)
    own = [*fields]
    for options in get_args(hints.get("options"))[1:]:
        fields |= {
            name: about
            for name, about in _fields(options, lambda _, hint: _has_values(hint)).items()
            if wanted(name) and name not in own
        }
    return fields


def _fields(declaration: type[Any], wanted: Callable[[str, Any], bool]) -> Fields:
    """The annotations and defaults of a dataclass's fields, as `create_model` takes them."""
    hints = get_type_hints(declaration, include_extras=True)
    declared, about = options_of(declaration), described(declaration)[1]
    renamed = declaration.place.renamed if issubclass(declaration, Call) else {}
    fields: Fields = {}
    for field in dataclasses.fields(declaration):  # type: ignore[arg-type]
        name, hint = field.name, hints[field.name]
        if name in declared and wanted(name, Annotated[hint, Values()]):
            fields[name] = _option(*declared[name])
        elif wanted(name, hint) and NOT_SENT not in getattr(hint, "__metadata__", ()):
            default = ... if field.default is dataclasses.MISSING else field.default
            if isinstance(default, tuple):
                default = [*default]
            text = about.get(name)
            fields[name] = (
                in_json(hint, model_of),
                Field(default, description=text and text.rstrip("."), alias=renamed.get(name)),
            )
    return fields


def _has_values(hint: Any) -> bool:
    """True if values are declared for a type."""
    if get_origin(hint) is Annotated:
        return any(isinstance(about, Values) for about in hint.__metadata__)
    return get_origin(hint) is Union and any(_has_values(each) for each in get_args(hint))


@cache
def model_of(shape: type[Any]) -> type[RequestModel]:
    """Return the model of a dataclass that stands within a request."""
    return _model(shape.__name__, _with_options(shape), shape, RequestModel)


def _model(name: str, fields: Fields, shape: type[Any], base: type[RequestModel]) -> type[RequestModel]:
    text = described(shape)[0]
    about: Any = {"__base__": base, "__module__": __name__, "__doc__": text.split("\n\n")[0], **fields}
    return create_model(name, **about)  # type: ignore[return-value]


def _option(declared: dataclasses.Field[Any], about: Option) -> tuple[Any, Any]:
    """The annotation and the default of one option."""
    plain, optional = type_of(declared)
    kind: Any = Literal[about.choices] if about.choices else plain
    bounds: dict[str, Any] = {}
    if about.low is not None:
        low, high = ("gt", "lt") if about.inside else ("ge", "le")
        bounds |= {low: about.low, high: about.high}
    if about.longest is not None:
        bounds |= {"min_length": 1, "max_length": about.longest}
    if about.pattern is not None:
        bounds["pattern"] = about.pattern
    if plain is float:
        bounds["allow_inf_nan"] = False
    annotated: Any = Annotated[kind, Field(**bounds)]
    if about.joined:
        annotated = Annotated[Union[annotated, list[str]], BeforeValidator(joined_names)]  # noqa: UP007
    annotated = Annotated[annotated, Values(allowed_values(declared, about), about.choices)]
    annotation: Any = Optional[annotated] if optional else annotated  # noqa: UP045
    return annotation, Field(
        declared.default, alias=about.alias, description=about.help, json_schema_extra=about.json
    )


def described(shape: type) -> tuple[str, dict[str, str]]:
    """The description of a dataclass, and that of each field listed in its docstring and its bases'."""
    text, about = "", dict[str, str]()
    for base in reversed(shape.__mro__[:-1]):
        text, listed = _parts(inspect.getdoc(base) or "")
        names = list[str]()
        for line in listed:
            if line.startswith(" " * 8):
                about |= {name: f"{about[name]} {line.strip()}" for name in names}
            else:
                listing, _, said = line.strip().partition(": ")
                names = listing.split(", ")
                about |= dict.fromkeys(names, said)
    return text, about


def _parts(text: str) -> tuple[str, Iterator[str]]:
    """A docstring without its sections, and the lines of the one that lists fields."""
    paragraphs = text.split("\n\n")
    said = [each for each in paragraphs if not each.startswith(("Args:\n", "Attributes:\n", "Raises:\n"))]
    listed = [each for each in paragraphs if each.startswith(("Args:\n", "Attributes:\n"))]
    return "\n\n".join(said), (line for each in listed for line in each.splitlines()[1:])

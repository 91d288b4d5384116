"""What a request hands on: recorders around what does the work, and values made up for the fields of it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from types import ModuleType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import numpy as np
import pytest
import torch
from annotated_types import Ge, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from support.cli.recorder import MADE_UP, plain

from dsearch.engine import Collection, SearchEngine, calls
from dsearch.engine.feedback import Episodes, explored, impression_of
from dsearch.engine.search import gradients
from dsearch.engine.search.embed import embed, rerank
from dsearch.engine.search.similar import similar
from dsearch.service.tasks.store import TaskStore
from dsearch.service.wire.requests import RequestModel
from dsearch.store import FeedbackStore
from dsearch.store.reader import Reader
from dsearch.training import judging, remember

DOES_THE_WORK: list[Any] = [
    *(Collection, SearchEngine, Episodes, FeedbackStore, TaskStore),
    *(calls, gradients, judging),
    *(similar, embed, rerank, explored, impression_of, remember, Reader.get),
]
"""Functions, and classes and modules of them, to which routes hand on what they were asked."""
NOISE = {"now_s", "shown_s", "received_s"}
"""Names of what is another in each request: times."""


class Call(NamedTuple):
    """A call of what does the work."""

    name: str
    arguments: list[Any]


def record_work(monkeypatch: pytest.MonkeyPatch, instead: Mapping[Any, Any]) -> list[Call]:
    """Let each function of `DOES_THE_WORK` note its arguments, and then work, or another one instead."""
    made: list[Call] = []
    functions: dict[int, Any] = {}
    for owner in DOES_THE_WORK:
        if not isinstance(owner, type | ModuleType):
            functions[id(owner)] = owner
            continue
        for name, function in inspect.getmembers(owner, inspect.isfunction):
            ours = function.__module__.startswith("dsearch.") and not name.startswith("_")
            if ours and (isinstance(owner, type) or function.__module__ == owner.__name__):
                functions[id(function)] = function
    recording = {
        key: _recording(function, instead.get(function, function), made)
        for key, function in functions.items()
    }
    modules = [module for name, module in sys.modules.items() if name.startswith("dsearch.")]
    classes = [base for owner in (*DOES_THE_WORK, Reader) if isinstance(owner, type) for base in owner.mro()]
    for place in (*modules, *(each for each in classes if each.__module__.startswith("dsearch."))):
        for name, value in list(vars(place).items()):
            if id(value) in recording:
                monkeypatch.setattr(place, name, recording[id(value)])
    return made


def _recording(function: Any, work: Any, made: list[Call]) -> Any:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def recorded(*args: Any, **options: Any) -> Any:
        bound = signature.bind(*args, **options)
        made.append(Call(function.__qualname__, as_record(dict(bound.arguments))))
        return work(*args, **options)

    return recorded


def as_record(value: Any) -> Any:
    """Return a value as lists and scalars, without what is another in each request."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.tolist()
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, functools.partial):
        return [as_record(value.args), as_record(value.keywords)]
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        value = {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return [[str(name), as_record(item)] for name, item in value.items() if name not in NOISE]
    if isinstance(value, Sequence | Set) and not isinstance(value, str | bytes):
        return [as_record(item) for item in value]
    return plain(value)


class Change(NamedTuple):
    """A field of a request that is given: the request with it and without, and what of it must arrive.

    Attributes:
        path: place of the field.
        name: its name.
        without: the request without it; None where it cannot be left out.
        request: with it.
        arrives: what must arrive; None: only a difference.
    """

    path: str
    name: str
    without: Any
    request: Any
    arrives: Any


def changes(
    model: type[BaseModel],
    request: Any,
    values: Mapping[str, tuple[Any, Any]],
    without: Container[str] = (),
    above: str = "",
) -> Iterator[Change]:
    """Give each field of a request, and of requests within, a value other than its default.

    Args:
        model: the schema; of each item where the request is a list.
        request: the smallest request.
        values: by `Model.field` or `field`, where a value cannot be made up: the value, and what must arrive.
        without: paths of fields to leave out.
        above: path of the schema within another one, with a dot.
    """
    if isinstance(request, list):
        for change in changes(model, request[0], values, without, above):
            before = None if change.without is None else [change.without, *request[1:]]
            yield change._replace(without=before, request=[change.request, *request[1:]])
        return
    for name, field in model.model_fields.items():
        spoken, label = field.alias or name, f"{model.__name__}.{name}"
        path = f"{above}{spoken}"
        if path in without or _single(field) or (field.description or "").startswith("field of "):
            continue  # not here, without another value, or of another API and not used
        known = values.get(label, values.get(name))
        inner = [each for each in models_in(field.annotation) if issubclass(each, RequestModel)]
        if spoken in request:
            value = request[spoken]
            arrives = known[1] if known is not None and known[0] == value else value
        else:
            value, arrives = made_up(name, field) if known is None else known
        having = {**request, spoken: value}
        if not inner or spoken not in request or isinstance(value, str):
            yield Change(path, name, None if spoken in request else request, having, arrives)
        if not inner or isinstance(value, str):
            continue
        for change in changes(inner[0], value, values, without, f"{path}."):
            yield change._replace(
                without=None if change.without is None else {**having, spoken: change.without},
                request={**having, spoken: change.request},
            )


def leaves(value: Any) -> list[Any]:
    """The scalars of a value but booleans, which are told by a difference alone."""
    if isinstance(value, dict | list):
        return [
            leaf for item in (value.values() if isinstance(value, dict) else value) for leaf in leaves(item)
        ]
    return [] if value is None or isinstance(value, bool) else [value]


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the schemas that an annotation has."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def made_up(name: str, field: FieldInfo) -> tuple[Any, Any]:
    """Make up a value within the bounds of a field; what must arrive is this value."""
    kind, bounds = _kind(field.annotation, list(field.metadata))
    if kind is bool:
        return not field.default, None
    if get_origin(kind) is Literal:
        value = next(choice for choice in reversed(get_args(kind)) if choice != field.default)
        return value, value
    lows: list[Any] = [bound.ge for bound in bounds if isinstance(bound, Ge)]
    highs: list[Any] = [
        bound.le if isinstance(bound, Le) else bound.lt for bound in bounds if isinstance(bound, Le | Lt)
    ]
    if kind is int:
        return (value := min([37, *highs])), value
    if kind is float:
        low = max([0.0, *lows])
        return (value := low + 0.375 * (min([low + 1, *highs]) - low)), value
    if kind is str:
        return f"{MADE_UP}{name}", f"{MADE_UP}{name}"
    raise NotImplementedError(f"no value for {name}: {kind}")


def _single(field: FieldInfo) -> bool:
    """True if a field has one value alone."""
    kind, _ = _kind(field.annotation, [])
    return get_origin(kind) is Literal and len(get_args(kind)) == 1


def _kind(annotation: Any, bounds: list[Any]) -> tuple[Any, list[Any]]:
    """Return the plain type of an annotation, and its bounds."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) is Annotated:
        plain_type, *further = get_args(annotation)
        for each in further:
            bounds = [*bounds, *(each.metadata if isinstance(each, FieldInfo) else [each])]
        return _kind(plain_type, bounds)
    return annotation, bounds

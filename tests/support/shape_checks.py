"""Checks the shapes in signatures, as `--jaxtyping-packages=…` does, at a fraction of its cost.

jaxtyping's own hook wraps every function of a package: 6 s an import of them all, and 100 µs a call. These
checks, put in place by `shape_hook.py`, wrap a function only if its signature names a shape, when called
first, and a dataclass only if a field does. The verdict of a check depends on types, number types and shapes
alone, so arguments and results like earlier ones are not checked again. Comparing them takes a sixth of the
time of a search: after its first calls a function is checked at every eighth, by `--nightly` at every one.
Plain types are checked by pyright alone: tests of bad input pass wrong ones, for the package to refuse.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Hashable, Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple, get_args, get_type_hints

import jaxtyping
import numpy as np
import torch
from beartype import beartype
from support import shape_hook

EVERY = 200  # the first calls of a function are checked, and one of `shape_hook.one_of` later ones
_LONGEST = 64  # items of a list, and characters of a string, that are part of a key
_MISSING = object()


class _Known(NamedTuple):
    """What is known of a function: its code, its types if one is a shape, and what passed a check.

    `passed` is arguments, and for each of them results; `calls` counts.
    """

    code: CodeType  # kept, so that its id stays its own; equal codes may have other annotations
    types: dict[str, Any] | None
    passed: dict[Hashable, set[Hashable]]
    calls: Iterator[int]


_known: dict[int, _Known] = {}  # by id of the code


def checked(function: Any) -> Any:
    """A function with its shapes checked, or itself if its signature names none."""
    code = function.__code__
    if (known := _known.get(id(code))) is None:  # a function within another is defined again and again
        # Now and not at the first call: a class within which it is defined is Any yet, as jaxtyping has it.
        types = _resolved(function)
        shaped = any(map(_names_a_shape, types.values()))
        known = _known[id(code)] = _Known(code, types if shaped else None, {}, itertools.count())
    return function if known.types is None else _checked_when_called(function, known.types, known)


def checked_class(made: Any) -> Any:
    """A class whose generated `__init__` checks the shapes of its fields, if they name any."""
    own = vars(made).get("__init__")
    if dataclasses.is_dataclass(made) and isinstance(own, FunctionType):
        made.__init__ = checked(own)
    return made


def _resolved(function: FunctionType) -> dict[str, Any]:
    """Annotations as types; Any, as jaxtyping has it, if a name is for type checkers only."""
    resolved = {}
    for name, annotation in function.__annotations__.items():
        holder = FunctionType((lambda: None).__code__, function.__globals__)
        holder.__annotations__ = {"it": annotation}
        try:
            resolved[name] = get_type_hints(holder, include_extras=True)["it"]
        except Exception:  # NameError, or whatever evaluating the text raises
            resolved[name] = Any
    return resolved


def _names_a_shape(annotation: object) -> bool:
    if isinstance(annotation, (list, tuple)):  # the arguments of a Callable
        return any(map(_names_a_shape, annotation))
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(_names_a_shape, get_args(annotation)))


def _checked_when_called(function: Any, types: dict[str, Any], known: _Known) -> Any:
    passed, calls = known.passed, known.calls
    wrapper: Callable[..., Any] | None = None
    results: dict[int, object] = {}  # by thread: a result that is there already, only to be checked

    def call_or_take(*arguments: Any, **named: Any) -> Any:
        result = results.pop(threading.get_ident(), _MISSING)
        return function(*arguments, **named) if result is _MISSING else result

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal wrapper
        # A traced size that is looked up, or compared, becomes a constant of the graph, or a part of it.
        tracing = torch.compiler.is_compiling() or torch._C._is_tracing()
        if tracing or jaxtyping.config.jaxtyping_disable:
            return function(*arguments, **named)
        number = next(calls)
        if number >= EVERY and number % shape_hook.one_of:
            return function(*arguments, **named)
        before = _key_of_call(arguments, named)
        results_passed = None if before is None else passed.get(before)
        seen = results_passed is not None
        result = function(*arguments, **named) if seen else _MISSING
        if results_passed is not None and (after := key_of(result)) is not None and after in results_passed:
            return result
        if wrapper is None:
            wrapper = _jaxtyped(call_or_take, function, types)
        results[threading.get_ident()] = result
        result = wrapper(*arguments, **named)
        if before is not None:
            results_passed = passed.setdefault(before, set())
            if (after := key_of(result)) is not None:
                results_passed.add(after)
        return result

    return call


def _jaxtyped(stand_in: Any, function: Any, types: dict[str, Any]) -> Callable[..., Any]:
    """`stand_in` under jaxtyping's wrapper, with the signature of `function`."""
    signature = inspect.signature(function)
    parameters = [
        one.replace(annotation=types.get(one.name, inspect.Parameter.empty))
        for one in signature.parameters.values()
    ]
    result = types.get("return", inspect.Signature.empty)
    functools.update_wrapper(stand_in, function)
    stand_in.__signature__ = signature.replace(parameters=parameters, return_annotation=result)
    return jaxtyping.jaxtyped(stand_in, typechecker=beartype)


def _key_of_call(arguments: tuple[Any, ...], named: dict[str, Any]) -> Hashable | None:
    positional = _key_of_parts(arguments)
    if positional is None or not named:
        return positional
    by_name = _key_of_parts(named)
    return None if by_name is None else (positional, by_name)


def key_of(value: object) -> Hashable | None:
    """All that a check of a value's type and shape depends on; None if that is too much to say."""
    kind = type(value)
    try:
        key = _key_by_type[kind]
    except KeyError:
        key = _key_by_type[kind] = next((of for bases, of in _KEYS if issubclass(kind, bases)), None)
    return kind if key is None else key(value)


def _key_of_array(value: Any) -> Hashable:
    return (type(value), value.dtype, value.shape)


def _key_of_text(value: str) -> Hashable:
    return value if len(value) <= _LONGEST else str


def _key_of_parts(value: Any) -> Hashable | None:
    parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    if len(parts) > 2 * _LONGEST:
        return None
    keys = tuple([key_of(one) for one in parts])
    return None if None in keys else (type(value), keys)


_KEYS: tuple[tuple[Any, Callable[[Any], Hashable | None]], ...] = (
    ((torch.Tensor, np.ndarray), _key_of_array),
    (int, lambda value: (type(value), value)),  # a size may be named in a shape
    (str, _key_of_text),  # may be one of a Literal
    (type, lambda value: value),
    ((dict, list, tuple, set, frozenset), _key_of_parts),
)
_key_by_type: dict[type, Callable[[Any], Hashable | None] | None] = {}

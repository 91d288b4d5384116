"""Options of commands that are derived from a declaration (dsearch/declared.py)."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from dsearch.declared import Option, options_of, type_of
from dsearch.jobs import TrainingJob

_DATA_FLAGS = {"judgements": "--data", "trusted_keys": "--trusted-keys", "teacher": "--teacher"}


def with_options_of(
    declaration: type, *, without: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command: its `**options` become one option for each of a declaration, but for some.

    The command's other annotations must be evaluated in its module.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        parameters = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        derived = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=_annotation(field, about),
            )
            for name, (field, about) in options_of(declaration).items()
            if about.cli and name not in without
        ]
        every = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters] + derived
        command.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        return command

    return decorate


def as_flag(name: str, value: object = None) -> str:
    """An option as the command line spells it: `--scope full`, or its flag alone."""
    declared = options_of(TrainingJob).get(name)
    flag = _DATA_FLAGS.get(name) or _flag(name, None if declared is None else declared[1])
    return flag if value is None or isinstance(value, bool | list | dict) else f"{flag} {value}"


def _flag(name: str, about: Option | None) -> str:
    if about is not None and about.flag is not None:
        return about.flag
    return f"--{name.replace('_', '-')}"


def _annotation(field: dataclasses.Field[Any], about: Option) -> Any:
    plain, optional = type_of(field)
    kind: Any = plain | None if optional else plain
    flag = _flag(field.name, about)
    if field.default is True and "/" not in flag:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    text = about.help[0].upper() + about.help[1:]
    if about.choices and not all(choice in text for choice in about.choices):
        text += f": {', '.join(about.choices)}"
    return Annotated[kind, typer.Option(*flag.split(), help=f"{text}.")]

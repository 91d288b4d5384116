"""`options_from`: the fields of a request, derived from a declaration (dsearch/declared.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Optional, TypeVar

from pydantic import BaseModel, Field, create_model, model_validator

from dsearch.declared import Option, allowed_values, options_of, type_of
from dsearch.errors import InvalidRequest
from dsearch.service.wire.requests import allowed

Model = TypeVar("Model", bound=BaseModel)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn our errors into those that pydantic collects."""
    try:
        yield
    except InvalidRequest as error:
        raise ValueError(str(error)) from None


def options_from(declaration: type[Any], *, check: bool = True) -> Callable[[type[Model]], type[Model]]:
    """Decorate a model: add the options of a declaration, with their bounds.

    Args:
        declaration: dataclass of options.
        check: whether its `check()` is called for each request as well.
    """

    def decorate(model: type[Model]) -> type[Model]:
        fields: dict[str, Any] = {
            name: _field(declared, about) for name, (declared, about) in options_of(declaration).items()
        }
        data = [field.name for field in dataclasses.fields(declaration) if field.name in model.model_fields]

        def goes_together(request: Any) -> Any:
            values = {name: getattr(request, name) for name in (*data, *fields)}
            with plain_errors():
                declaration(**values).check()
            return request

        validators: dict[str, Any] = {"_goes_together": model_validator(mode="after")(goes_together)}
        return create_model(
            model.__name__,
            __base__=model,
            __module__=model.__module__,
            __doc__=model.__doc__,
            __validators__=validators if check else {},
            **fields,
        )

    return decorate


def _field(declared: dataclasses.Field[Any], about: Option) -> tuple[Any, Any]:
    """The annotation and the default of one option, as `create_model` takes them."""
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
    annotated = Annotated[kind, Field(**bounds), allowed(allowed_values(declared, about), about.choices)]
    annotation: Any = Optional[annotated] if optional else annotated  # noqa: UP045
    return annotation, Field(
        declared.default, alias=about.alias, description=about.help, json_schema_extra=about.json
    )

"""Optional packages, imported when a source needs them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from dsearch.errors import MissingExtra


def optional(module: str, *, extra: str, what: str) -> ModuleType:
    """Import the module of an extra.

    Args:
        module: its import name.
        extra: extra of dsearch that installs it.
        what: input that needs the package, for the message.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"{what} need {module.partition('.')[0]}, which is not installed or not whole ({error}); "
            f"run pip install 'dsearch[{extra}]', or in a checkout pip install '.[{extra}]'"
        ) from error

"""Constants of modules, beside the values that a test promises for them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def differing(module: str, promised: Mapping[str, Any]) -> dict[str, Any]:
    """Constants of a module below `dsearch` that have other values than promised, with the present ones."""
    present = vars(import_module(f"dsearch.{module}"))
    return {name: present.get(name) for name, value in promised.items() if present.get(name) != value}

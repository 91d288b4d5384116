"""Packages that import what is named on first use: every public name is there, and no other."""

from __future__ import annotations

import importlib
import re

import pytest
from support.paths import ROOT

LAZY = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in (ROOT / "dsearch").rglob("*.py")
    if re.search(
        r"^(def __getattr__\(|__getattr__, __dir__ = )", file.read_text(encoding="utf-8"), re.MULTILINE
    )
)


@pytest.mark.parametrize("name", LAZY)
def test_a_name_that_is_not_there_is_an_attribute_error(name: str) -> None:
    module = importlib.import_module(name)
    with pytest.raises(AttributeError, match=rf"module '{name}' has no (attribute )?'nothing_of_this_name'"):
        module.nothing_of_this_name
    missing = [public for public in getattr(module, "__all__", ()) if not hasattr(module, public)]
    assert missing == []


def test_some_packages_are_lazy() -> None:
    assert "dsearch.encoder" in LAZY

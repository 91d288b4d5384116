"""Dataclasses of a package that are declared in another way than most: frozen, and with slots."""

from __future__ import annotations

import re

from support.paths import ROOT

_DECLARED = re.compile(r"^ *@dataclass(?:\((.*?)\))?\n(?: *@.*\n)* *class (\w+)", re.MULTILINE)
_USUAL = {"frozen=True", "slots=True"}


def unlike_the_others(package: str) -> dict[str, str]:
    """Class → how its options differ: "-frozen", "+kw_only"; for the modules of dsearch/PACKAGE.

    A record that is not frozen can be changed by whoever holds it, as a key of a cache or in another thread;
    one without slots takes misspelt names; without `kw_only` its options depend on their order. A class of
    arrays has `eq=False`, since arrays that are compared are no truth value.
    """
    folder = ROOT / "dsearch"
    files = sorted((folder / package).rglob("*.py")) if package else sorted(folder.glob("*.py"))
    assert files, f"no modules in {folder / package}"
    found: dict[str, str] = {}
    for file in files:
        for options, name in _DECLARED.findall(file.read_text(encoding="utf-8")):
            given = {part.strip() for part in options.split(",") if part.strip()}
            differing = [f"-{one.partition('=')[0]}" for one in sorted(_USUAL - given)]
            differing += [f"+{one.removesuffix('=True')}" for one in sorted(given - _USUAL)]
            if differing:
                found[name] = " ".join(differing)
    return found

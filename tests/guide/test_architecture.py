"""The guide of the architecture names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import dsearch
from dsearch.guide import guide

PACKAGE = Path(dsearch.__file__).parent


def test_every_file_of_the_architecture_exists() -> None:
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|js)|(?:\w+/)+)`", guide("architecture"))
    assert named
    roots = (PACKAGE, PACKAGE.parent)
    assert not [name for name in named if not any((root / name).exists() for root in roots)]

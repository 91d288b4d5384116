"""The guide's code runs, from top to bottom, as it says."""

from __future__ import annotations

import re
from pathlib import Path

import dsearch

GUIDE = Path(dsearch.__file__).parent / "guide" / "attention.md"


def test_every_block_runs():
    text = GUIDE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"```python\n(.*?)```", text, re.DOTALL))
    assert len(blocks) > 10
    session: dict[str, object] = {}
    for block in blocks:
        above = text[: block.start(1)].count("\n")  # so that a failure names the guide's own line
        exec(compile("\n" * above + block[1], str(GUIDE), "exec"), session)

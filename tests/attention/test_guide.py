"""The guide's code runs, from top to bottom, as it says, and draws the pictures that the guide shows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import dsearch

GUIDE = Path(dsearch.__file__).parent / "guide" / "attention.md"


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchecked: None) -> None:
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"```python\n(.*?)```", text, re.DOTALL))
    assert len(blocks) > 10
    session: dict[str, object] = {}
    for block in blocks:
        above = text[: block.start(1)].count("\n")  # so that a failure names the guide's own line
        exec(compile("\n" * above + block[1], str(GUIDE), "exec"), session)
    image = pytest.importorskip("PIL.Image", reason="comes with the extra plot")
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(pictures) == 3
    for name in pictures:
        folders = (tmp_path, GUIDE.parent)
        drawn, shown = (np.asarray(image.open(at / name).convert("RGB"), np.float64) for at in folders)
        assert drawn.shape == shown.shape
        assert np.abs(drawn - shown).mean() < 4, name

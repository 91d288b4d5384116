"""The guide's code runs, from top to bottom, as it says, and draws the pictures that the guide shows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import dsearch
from dsearch.guide.search import anchor_of

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


def test_the_tests_that_the_guide_names_exist() -> None:
    tests = Path(__file__).parents[1]
    table = [line for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    every = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", "\n".join(table)))
    assert len(named) > 10
    assert [name for name in sorted(named) if f"def {name}(" not in every] == []
    files = set(re.findall(r"`(?:tests/)?([\w/]*test_\w+\.py)`", "\n".join(table)))
    assert [
        name
        for name in sorted(files)
        if not ((tests / name).exists() or (tests / "attention" / name).exists())
    ] == []
    anchors = set(re.findall(r"\]\(#([\w-]+)\)", "\n".join(table)))
    headings = re.findall(r"^#+ (.+)$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert anchors <= {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_table_of_rows_names_sections_and_tests_that_exist() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    table = text[text.index("| row | on a collection | test |") :].partition("\n\n")[0]
    anchors = {anchor_of(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    links = re.findall(r"\]\(#([^)]+)\)", table)
    assert len(links) > 10
    assert {*links} <= anchors
    tests = Path(__file__).parents[1]
    rows = Path(__file__).with_name("test_rows_on_a_collection.py").read_text(encoding="utf-8")
    names = re.findall(r"`(test_\w+)`", table)
    assert len(names) > 12
    assert all(f"def {name}(" in rows for name in names)
    files = re.findall(r"`(?:tests/)?([\w/]*test_\w+\.py)`", table)
    assert len(files) > 8
    assert all([*tests.rglob(file)] for file in files)

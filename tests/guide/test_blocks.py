"""Every code block of the guides and of README does what the text around it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.guide.blocks import ENTRY_POINT, blocks_of, pictures_of, run_blocks
from support.guide.commands import commands_in, problem_with
from support.guide.readme import prepare, visit
from support.paths import ROOT

import dsearch

# attention.md is run by tests/attention, which stands for itself.
ALL_GUIDES = sorted((Path(dsearch.__file__).parent / "guide").glob("*.md"))
GUIDES = [path for path in ALL_GUIDES if path.stem != "attention"]
README = ROOT / "README.md"
# Lines of README's blocks that are not run from it, and why.
NOT_RUN = {
    "scripts/demo": "installs into the working tree; tests/real/test_demo.py runs what it ends in",
    "command -v nvidia-smi": "asks a package index; what it installs is what runs here",
}

LEAVES_EARLY = re.compile(r"\|\s*(head\b|grep\s+(-\w*q|-m))")


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_every_block_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSEARCH_HOME", raising=False)
    prepare(tmp_path)
    learning = ("dsearch train", "dsearch tune")  # on eight notes the gate cannot tell, which is exit code 3
    ran = run_blocks(README, tmp_path, passed_over=NOT_RUN, may_be_kept=learning, meanwhile=visit)
    assert ran == len(blocks_of(README)) >= 5


@pytest.mark.parametrize("path", [README, *ALL_GUIDES], ids=[one.stem for one in (README, *ALL_GUIDES)])
def test_no_pipe_ends_before_what_feeds_it(path: Path) -> None:
    """With pipefail, whether the first command still writes when the second has gone is chance."""
    found = [block.code for block in blocks_of(path) if LEAVES_EARLY.search(block.code)]
    assert not found


def test_nothing_is_passed_over_in_vain() -> None:
    lines = [line for block in blocks_of(README) for line in block.code.splitlines()]
    for beginning, why in NOT_RUN.items():
        assert why
        assert [line for line in lines if line.startswith(beginning)], beginning


@pytest.mark.parametrize("path", [README, *ALL_GUIDES], ids=[one.stem for one in (README, *ALL_GUIDES)])
def test_commands_that_are_named_in_passing_exist(path: Path) -> None:
    found = list(commands_in(path.read_text(encoding="utf-8")))
    problems = {command: problem for command in found if (problem := problem_with(command, ROOT))}
    assert not problems


def test_the_entry_point_starts_cold() -> None:
    """Once, since the blocks start it warm."""
    command = [str(ENTRY_POINT), "guide", "concepts"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert told.startswith("# ")


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("path", GUIDES, ids=[path.stem for path in GUIDES])
def test_every_block_of_a_guide_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not blocks_of(path):
        pytest.skip("nothing to run")
    monkeypatch.setenv("DSEARCH_HOME", str(tmp_path / "index"))
    assert run_blocks(path, tmp_path) > 0
    for name in pictures_of(path):
        assert_alike(tmp_path / name, path.with_name(name))


def assert_alike(drawn: Path, shown: Path) -> None:
    """The picture that a guide shows is the one that its code draws, but for its palette."""
    image = pytest.importorskip("PIL.Image", reason="comes with the extra plot")
    pixels = [np.asarray(image.open(path).convert("RGB"), np.float64) for path in (drawn, shown)]
    assert pixels[0].shape == pixels[1].shape
    assert np.abs(pixels[0] - pixels[1]).mean() < 4, f"draw {shown.name} anew: scripts/tools/make_pictures.py"


def test_pictures_that_are_shown_exist_and_are_small() -> None:
    for path in (README, *ALL_GUIDES):
        for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / name).stat().st_size <= 150_000, (path.name, name)

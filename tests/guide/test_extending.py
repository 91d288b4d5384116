"""A toy of each kind is added in as many files as the architecture guide says, and every door has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.guide.extensions import EXTENSIONS, MOST_FILES, extended_package
from support.paths import TESTS

USE = TESTS / "support" / "guide" / "extended_use.py"


@pytest.mark.parametrize("kind", EXTENSIONS)
def test_an_addition_changes_few_files(kind: str) -> None:
    files = {edit.file for edit in EXTENSIONS[kind]}
    assert len(files) <= MOST_FILES[kind], sorted(files)


def test_every_door_has_what_was_added(tmp_path: Path) -> None:
    root = extended_package(tmp_path / "copy")
    path = os.pathsep.join([str(root), str(TESTS)])
    done = subprocess.run(
        [sys.executable, str(USE), str(root), str(tmp_path / "home")],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

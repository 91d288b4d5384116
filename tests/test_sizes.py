"""The three sizes of the suite: what `-m quick` and `--nightly` take, and what a run says it left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import TESTS
from support.sizes import mark_quick, quick_files

SUITE = """\
import pytest
from hypothesis import settings
from support import shape_hook
from support.sizes import by_size

SIZE = by_size(3, 700)

def test_size():
    print("size", SIZE, settings().max_examples, shape_hook.one_of)

@pytest.mark.nightly
def test_large(): ...

@pytest.mark.slow
def test_slow(): ...
"""


class _Item:
    """A test of a file, with markers."""

    def __init__(self, path: Path, markers: list[str]):
        self.path, self.markers = path, markers

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.markers.append(marker.name)


def run(folder: Path, *arguments: str) -> str:
    """The output of the plugin on a suite of three tests."""
    (folder / "test_suite.py").write_text(SUITE)
    options = [
        "-p",
        "no:cacheprovider",
        "-p",
        "xdist",
        "-p",
        "support.sizes",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
    ]
    command = [sys.executable, "-m", "pytest", "-s", *options, *arguments, str(folder)]
    # Importing the plugins of every installed package would take longer than all else.
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False).stdout


def test_every_package_has_quick_tests() -> None:
    listed = quick_files()
    assert [name for name in listed if not (TESTS / name).is_file()] == []
    packages = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")}
    assert packages - {"real"} == {Path(name).parts[0] for name in listed if "/" in name}


def test_quick_leaves_out_special_tests_of_listed_files() -> None:
    plain, special = (_Item(TESTS / min(quick_files()), markers) for markers in ([], ["crash"]))
    unlisted = _Item(TESTS / "test_unlisted.py", [])
    mark_quick([plain, special, unlisted])  # type: ignore[list-item]
    assert [one.markers for one in (plain, special, unlisted)] == [["quick"], ["crash"], []]


@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["alone", "two processes"])
def test_large_sizes_are_left_out_and_counted(tmp_path: Path, processes: list[str]) -> None:
    output = run(tmp_path, "-m", "not slow", *processes)
    assert "left out: " in output, output
    assert "1 nightly" in output, output
    assert "1 slow" in output, output
    assert "1 passed" in output, output
    assert processes or "size 3 50 8" in output, output


def test_nightly_takes_everything_in_large(tmp_path: Path) -> None:
    output = run(tmp_path, "--nightly")
    assert "left out" not in output, output
    assert "3 passed" in output, output
    assert "size 700 500 1" in output, output

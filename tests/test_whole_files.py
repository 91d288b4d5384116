"""Processes of a run that import the files they run: everything is reported as if all had imported all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.paths import TESTS
from support.whole_files import by_file

FILES = {
    "conftest.py": """
import pytest

def note(what):
    with open("log", "a") as log:
        log.write(what + "\\n")

note("process")

@pytest.fixture(scope="session")
def once():
    note("set-up")
    yield note
    note("torn-down")
""",
    "test_a.py": """
import pytest
from conftest import note

note("a")

@pytest.mark.parametrize("number", [1, 2])
def test_good(once, number): pass

def test_bad(once): assert 1 == 2

@pytest.mark.nightly
def test_late(): pass
""",
    "inner/test_b.py": """
from conftest import note

note("b")

def test_of_a_folder(once, tmp_path): pass
""",
    "test_broken.py": "raise ValueError('broken file')",
    "test_skipped.py": "import pytest; pytest.skip('not here', allow_module_level=True)",
    "test_z.py": """
import os

def test_before(once): once("before")

def test_that_dies(): os._exit(3)
""",
}


def run(folder: Path, *names: str) -> str:
    for name in ("conftest.py", *names):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(FILES[name])
    plugins = [f"-psupport.{name}" for name in ("whole_files", "sizes", "longest")]
    options = ["-c", os.devnull, "--rootdir", str(folder), "-pxdist", *plugins, "-pno:cacheprovider", "-ra"]
    options += ["-n1", "--dist=loadfile", "--max-worker-restart=0", "--by-file"]
    # Importing the plugins of every installed package would take longer than all else.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(folder)]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "pytest", *options, str(folder)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    ).stdout


def test_files_are_imported_where_they_run_and_reported_by_their_tests(tmp_path: Path) -> None:
    said = run(tmp_path, "test_a.py", "inner/test_b.py", "test_broken.py", "test_skipped.py")
    assert "1 worker [4 items]" in said, said
    assert re.search(r"1 failed, 3 passed, 1 skipped.*, 1 error", said), said
    lines = (
        "FAILED test_a.py::test_bad",
        "ERROR test_broken.py",
        "ValueError: broken file",
        "not here",
        "left out: 1 nightly",
    )
    assert [line for line in lines if line not in said] == [], said
    log = (tmp_path / "log").read_text().split()
    # The first process gives the other one its files, and imports none.
    assert log == ["process", "process", "b", "set-up", "a", "torn-down"]


def test_the_test_in_which_a_process_dies_is_named(tmp_path: Path) -> None:
    said = run(tmp_path, "test_z.py")
    assert "crashed while running 'test_z.py::file', in test_z.py::test_that_dies" in said, said
    assert "1 failed, 1 passed" in said, said


@pytest.mark.parametrize(
    "chosen",
    [
        {"markexpr": "quick"},
        {"keyword": "good"},
        {"deselect": ["a"]},
        {"collectonly": True},
        {"by_file": False},
    ],
)
def test_with_a_choice_of_tests_every_file_is_collected(chosen: dict[str, Any]) -> None:
    whole = {"by_file": True, "markexpr": "", "keyword": "", "deselect": None, "collectonly": False}
    config: Any = SimpleNamespace(option=SimpleNamespace(**whole), args=["tests/engine"])
    assert by_file(config)
    config.option = SimpleNamespace(**{**whole, **chosen})
    assert not by_file(config)
    config.option, config.args = SimpleNamespace(**whole), ["tests/test_a.py::test_good"]
    assert not by_file(config)

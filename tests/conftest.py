"""What all test runs start with; support/fixtures.py has the fixtures of all tests."""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

gc.disable()  # until tests are collected (support/longest.py): what is imported stays

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests/support

from support.warm.processes import SHARED


def runs_tests() -> bool:
    """Not so of the process that gives others their tests: it need not import what they need."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-n", "--numprocesses", default="0")
    given, _ = parser.parse_known_args(sys.argv[1:])
    return "PYTEST_XDIST_WORKER" in os.environ or given.numprocesses == "0"


pytest_plugins = ["support.whole_files", "support.sizes", "support.longest"]
if runs_tests():  # now: a folder's conftest.py may import what is checked
    pytest_plugins.append("support.fixtures")


def pytest_configure(config: pytest.Config) -> None:
    """Test processes beside each other share the one that forks: importing takes it seconds."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        os.environ[SHARED] = tempfile.mkdtemp(prefix="warm-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(SHARED), ignore_errors=True))

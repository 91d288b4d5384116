"""Whole files in the order of their length, the longest first, as a pytest plugin.

Processes take file after file, so they end together if the last files are short. `long_files.txt` names
the longest, with their seconds in a whole run; the others follow by marker. The summary of a run prints its
longest files: what `long_files.txt` should say. The tests of tests/cluster/ run in one process, one after the
other: they share a Ray cluster, which takes long to start and more than a core to run.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.paths import TESTS

LONG_FILES = Path(__file__).with_name("long_files.txt")
LONG_MARKERS = ("ray", "browser", "slow", "crash")  # of files that are not listed, the longest first
CLUSTER = "tests/cluster/"
PRINTED = 20
PRINTED_ABOVE_S = 5.0

_seconds: defaultdict[str, float] = defaultdict(float)  # of this run, by file


@cache
def long_files() -> dict[str, float]:
    """Seconds of the longest files, by path relative to tests/."""
    lines = [line.split() for line in LONG_FILES.read_text().splitlines() if line and line[0] != "#"]
    return {name: float(seconds) for seconds, name in lines}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class WholeFiles(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return CLUSTER if nodeid.startswith(CLUSTER) else super()._split_scope(nodeid)

    return WholeFiles(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank: dict[Path, tuple[float, int]] = {}
    for item in items:
        rank[item.path] = min(rank.get(item.path, (0.0, len(LONG_MARKERS))), _rank(item))
    items.sort(key=lambda item: rank[item.path])


def pytest_collection_finish() -> None:
    """Leave what the test modules imported out of garbage collections: millions of objects that stay."""
    gc.enable()
    gc.freeze()  # what is garbage by now is little, and finding it takes more than a second


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Called in the process that reports, for tests of every process."""
    _seconds[report.location[0].removeprefix("tests/")] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    by_length = sorted(_seconds.items(), key=lambda one: -one[1])
    longest = [one for one in by_length[:PRINTED] if one[1] >= PRINTED_ABOVE_S]
    if longest:
        terminalreporter.section("longest files")
    for name, seconds in longest:
        terminalreporter.write_line(f"{seconds:5.0f} {name}")


def _rank(item: pytest.Item) -> tuple[float, int]:
    name = item.path.relative_to(TESTS).as_posix() if TESTS in item.path.parents else ""
    marked = (at for at, marker in enumerate(LONG_MARKERS) if item.get_closest_marker(marker))
    return -long_files().get(name, 0.0), next(marked, len(LONG_MARKERS))

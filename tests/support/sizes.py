"""Three sizes of the suite, as a pytest plugin: `-m quick`, everything by default, and `--nightly`.

The marker `quick` is on every test of the files in `quick_files.txt` that needs nothing special. Tests marked
`nightly` are left out without `--nightly`, by which shapes are checked at every call, too. Other tests take
their numbers from `by_size`, and hypothesis from the profiles `default` and `nightly`. The summary of a run
counts the tests that were left out, by marker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from support import shape_hook
from support.paths import TESTS

QUICK_FILES = Path(__file__).with_name("quick_files.txt")
SPECIAL = ("nightly", "slow", "crash", "browser", "ray", "cuda")  # markers that exclude `quick`

Size = TypeVar("Size")

_LEFT_OUT = pytest.StashKey[Counter[str]]()
_nightly = False

# Nothing is timed: a busy machine is slow, which is no fault of the code.
for _profile, _examples in (("default", 50), ("nightly", 500)):
    settings.register_profile(
        _profile,
        max_examples=_examples,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )


def by_size(default: Size, nightly: Size) -> Size:
    """The one or the other, by the size of this run; to be called when or after test modules are imported."""
    return nightly if _nightly else default


@cache
def quick_files() -> frozenset[str]:
    """Files whose tests are quick, relative to tests/."""
    lines = QUICK_FILES.read_text().splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def mark_quick(items: Sequence[pytest.Item]) -> None:
    """Put `quick` on the tests of quick files that need nothing special."""
    quick = quick_files()
    for item in items:
        if _name(item.path) in quick and not any(item.get_closest_marker(one) for one in SPECIAL):
            item.add_marker(pytest.mark.quick)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="large sizes, and tests marked `nightly` too")


def pytest_configure(config: pytest.Config) -> None:
    global _nightly
    _nightly = config.getoption("--nightly")
    shape_hook.one_of = by_size(shape_hook.one_of, 1)
    config.stash[_LEFT_OUT] = Counter()
    if not config.getoption("--hypothesis-profile", None):
        settings.load_profile("nightly" if _nightly else "default")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m quick` alone, read the quick files only: importing the others takes as long as these tests."""
    name = _name(collection_path)
    if config.option.markexpr != "quick" or not Path(name).match("test_*.py") or name in quick_files():
        return None
    config.stash[_LEFT_OUT]["whole files"] += 1
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_quick(items)
    if not config.getoption("--nightly"):
        late = [item for item in items if item.get_closest_marker("nightly")]
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
        if late:
            config.hook.pytest_deselected(items=late)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        marker = next((one for one in SPECIAL if item.get_closest_marker(one)), "others")
        item.config.stash[_LEFT_OUT][marker] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(
        session.config, "workeroutput"
    ):  # a process of pytest-xdist, which collects for the one that reports
        session.config.workeroutput["left_out"] = dict(session.config.stash[_LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    """Take the count of one process of pytest-xdist: each collects the same tests."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[_LEFT_OUT] = Counter(output.get("left_out", {}))  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left_out = config.stash[_LEFT_OUT]
    if left_out:
        counts = ", ".join(f"{count} {marker}" for marker, count in left_out.most_common())
        terminalreporter.write_line(f"left out: {counts} (scripts/test runs all but nightly, --nightly all)")


def _name(path: Path) -> str:
    return path.relative_to(TESTS).as_posix() if TESTS in path.parents else ""

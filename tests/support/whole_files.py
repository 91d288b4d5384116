"""With `--by-file`, a test process imports the files that it runs, and no others; a pytest plugin.

pytest-xdist lets every process collect every test: three processes import three times what one of them runs.
Here a process collects one item a file, `FILE::file`; running it collects the file and runs its tests, each
reported by its own name. Without pytest-xdist, or with a choice of single tests (-m, -k, FILE::TEST), nothing
changes.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MANY = 50  # imported modules: so many objects stay that garbage collections should leave them out

_running: dict[str, None] = {}  # in the process that reports: names of tests that have begun


class WholeFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield FileOfTests.from_parent(self, name="file")


class FileOfTests(pytest.Item):
    """Stands for all tests of its file."""

    def tests(self) -> list[pytest.Item]:
        """The tests of the file, which is imported; those that this run leaves out are reported as such."""
        assert self.parent is not None
        before = len(sys.modules)
        gc.disable()
        module = pytest.Module.from_parent(self.parent.parent, path=self.path)  # type: ignore[arg-type]
        items = list(self.session.genitems(module))
        gc.enable()
        if len(sys.modules) - before > MANY:
            gc.collect()
            gc.freeze()
        self.config.hook.pytest_collection_modifyitems(session=self.session, config=self.config, items=items)
        return items

    def runtest(self) -> None:
        raise AssertionError("its tests run in its place")


def by_file(config: pytest.Config) -> bool:
    """Whether the processes of this run collect files instead of tests."""
    option = config.option
    chosen = option.markexpr or option.keyword or option.deselect or any("::" in one for one in config.args)
    return bool(getattr(option, "by_file", False) and not chosen and not option.collectonly)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--by-file", action="store_true", help="with -n: a process imports the files that it runs"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> WholeFile | None:
    if hasattr(parent.config, "workerinput") and by_file(parent.config):
        return WholeFile.from_parent(parent, path=module_path)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not isinstance(item, FileOfTests):
        return None
    session = item.session
    place = session.items.index(item)
    tests = item.tests()
    for test, following in zip(tests, [*tests[1:], nextitem], strict=False):
        session.items[place] = test  # pytest-xdist reports what runs by its place
        item.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        if session.shouldfail or session.shouldstop:
            break
    session.items[place] = item
    # A file without tests has torn down nothing.
    session._setupstate.teardown_exact(nextitem)  # pyright: ignore[reportPrivateUsage]
    session._collection_cache.clear()  # pyright: ignore[reportPrivateUsage]
    return True


# ---- in the process that reports


def pytest_runtest_logstart(nodeid: str) -> None:
    _running[nodeid] = None


def pytest_runtest_logfinish(nodeid: str) -> None:
    _running.pop(nodeid, None)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport) -> None:
    """Name the test that ran when a process died, and not only its file."""
    file = crashitem.partition("::")[0]
    begun = [name for name in _running if name.startswith(f"{file}::")]
    if begun:
        report.longrepr = f"{report.longrepr}, in {', '.join(begun)}"

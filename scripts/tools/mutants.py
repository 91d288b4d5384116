"""Apply each fault of tests/mutants/ to a copy of the tree and report whether its tests notice it.

    python scripts/tools/mutants.py                  # every fault
    python scripts/tools/mutants.py store service    # those of tests/mutants/store.toml and service.toml
    python scripts/tools/mutants.py training/gate    # those of files below dsearch/training/gate
    python scripts/tools/mutants.py --name synced    # those whose name contains a text
    python scripts/tools/mutants.py --dry            # only check that each one applies and compiles

The tests are run on the unchanged copy first: a fault counts as noticed only where they pass without it. The
exit status is 1 where a fault survives. The working tree is never written to. Each run is forked from this
process, which has imported what does not change, torch above all: most of what a short run takes.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tests" / "mutants"
STAYS = (  # what tests import that is not of this tree
    "numpy",
    "torch",
    "faiss",
    "hypothesis",
    "pydantic",
    "starlette.testclient",
    "fastapi",
    "typer",
    "xdist",
    "transformers.models.bert.modeling_bert",
    "sentence_transformers.sentence_transformer.modules",
)
TIMEOUT_S = 600  # a fault may make its tests wait for ever, which is noticed too
_VERSIONS = itertools.count(10, 10)  # seconds by which a changed file is newer; no two versions share one
_PASSED, _FAILED, _TIMED_OUT = 0, 1, 124


@dataclass(frozen=True, slots=True)
class Fault:
    """A small change that tests must notice.

    Attributes:
        group: name of its TOML file.
        name: the misbehaviour in words.
        file: path below dsearch/.
        text: exact text that occurs once in the file.
        replacement: text in its place.
        tests: files or node ids below tests/, of which one must fail.
    """

    group: str
    name: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]

    def occurrences(self, root: Path) -> int:
        """Number of times that the text occurs in the file below `root`."""
        return (root / "dsearch" / self.file).read_text(encoding="utf-8").count(self.text)

    def is_in(self, group: str) -> bool:
        """The group is that of the fault, or a folder that its file is in."""
        return group == self.group or self.file.startswith(f"{group.rstrip('/')}/")

    def problem(self, root: Path) -> str | None:
        """Reason why the fault does not fit the tree `root`; None if it applies and compiles."""
        path = root / "dsearch" / self.file
        if not path.is_file():
            return f"no file {self.file}"
        if (count := self.occurrences(root)) != 1:
            return f"its text occurs {count} times in {self.file}, not once"
        if self.text == self.replacement:
            return "its replacement is its text"
        try:
            if path.suffix == ".py":
                compile(self.applied(path.read_text(encoding="utf-8")), self.file, "exec")
        except SyntaxError as error:
            return f"line {error.lineno} of {self.file} does not compile: {error.msg}"
        tests = [(root / "tests" / test.partition("::")[0], test.partition("::")[2]) for test in self.tests]
        for file, name in tests:
            if not file.exists() or (name and not _has_test(file.read_text(encoding="utf-8"), name)):
                return f"no test {name or file.name} in {file.relative_to(root)}"
        return None

    def applied(self, whole: str) -> str:
        """The file's text with the fault."""
        return whole.replace(self.text, self.replacement)


def _has_test(text: str, name: str) -> bool:
    """A function of the file, or `Class::method`, as pytest names them."""
    method = name.partition("::")[2]
    return re.search(rf"^    def {method}\(" if method else rf"^def {name}\(", text, re.MULTILINE) is not None


def faults() -> list[Fault]:
    """Read every fault of tests/mutants/."""
    return [
        Fault(path.stem, **{**entry, "tests": tuple(entry["tests"])})
        for path in sorted(FAULTS.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    ]


def copy_tree(folder: Path) -> None:
    """Copy what git tracks, and what it does not ignore, into `folder`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def run_tests(root: Path, tests: list[str], *, loud: bool = False) -> int:
    """Exit status of pytest on `tests` in the tree `root`, up to the first failure; `loud` prints its end."""
    printed = root / ".printed"
    forked = os.fork()
    if forked == 0:
        _run_pytest(root, tests, printed)
    until = time.monotonic() + TIMEOUT_S
    while (ended := os.waitpid(forked, os.WNOHANG))[0] == 0:
        if time.monotonic() > until:
            os.killpg(forked, signal.SIGKILL)  # and what its tests have started
            os.waitpid(forked, 0)
            return _TIMED_OUT
        time.sleep(0.05)
    status = os.waitstatus_to_exitcode(ended[1])
    if loud or status not in (_PASSED, _FAILED):
        print(printed.read_text(encoding="utf-8", errors="replace")[-4000:], file=sys.stderr)
    return status


def _run_pytest(root: Path, tests: list[str], printed: Path) -> NoReturn:
    """Be a process of pytest in the tree `root`."""
    status = 3
    try:
        os.setsid()
        os.chdir(root)
        os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        # Compiled modules are kept beside the copy: compiling all of them anew is most of a short run.
        os.environ.update(PYTHONPATH=str(root), PYTHONPYCACHEPREFIX=str(root / ".compiled"))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(root / ".compiled")
        sys.path[:] = [str(root), *(one for one in sys.path if Path(one).resolve() != ROOT)]
        command = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", f"--basetemp={root / '.pytest'}"]
        status = int(pytest.main([*command, *(f"tests/{test}" for test in tests)]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _import_what_stays() -> None:
    """In one thread: processes are forked from here."""
    os.environ |= {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    gc.disable()
    for name in STAYS:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    gc.freeze()
    gc.enable()
    assert threading.active_count() == 1
    assert not any(name.partition(".")[0] == "dsearch" for name in sys.modules)


def is_noticed(root: Path, fault: Fault) -> bool:
    """Apply a fault to the tree `root`, run its tests, and undo it."""
    path = root / "dsearch" / fault.file
    whole = path.read_text(encoding="utf-8")
    before = path.stat()
    path.write_text(fault.applied(whole), encoding="utf-8")
    # Python tells versions of a file by second and size; one that was compiled before must not stand for it.
    os.utime(path, (before.st_atime, before.st_mtime + next(_VERSIONS)))
    try:
        return run_tests(root, list(fault.tests)) != _PASSED
    finally:
        path.write_text(whole, encoding="utf-8")
        os.utime(path, (before.st_atime, before.st_mtime))


def main() -> int:
    """Run the chosen faults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("groups", nargs="*", help="of tests/mutants/, or folders of dsearch/ [default: all]")
    parser.add_argument("--name", default="", help="a text that the fault's name contains")
    parser.add_argument("--dry", action="store_true", help="check the list, and run no test")
    chosen = parser.parse_args()
    listed = faults()
    for group in chosen.groups:
        if not any(fault.is_in(group) for fault in listed):
            parser.error(f"no fault in {group!r}; use {', '.join(sorted({one.group for one in listed}))}")
    every = [
        fault
        for fault in listed
        if (not chosen.groups or any(map(fault.is_in, chosen.groups))) and chosen.name in fault.name
    ]
    if problems := [f"{one.group}: {one.name}: {why}" for one in every if (why := one.problem(ROOT))]:
        print("the list does not fit the code:", *problems, sep="\n  ", file=sys.stderr)
        return 2
    if chosen.dry:
        print(f"{len(every)} faults apply and compile")
        return 0
    _import_what_stays()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        copy_tree(copy)
        tests = sorted({test for fault in every for test in fault.tests})
        if (status := run_tests(copy, tests, loud=True)) != _PASSED:
            print(f"the tests fail without any fault (status {status})", file=sys.stderr)
            return 2
        noticed = 0
        for fault in every:
            seen = is_noticed(copy, fault)
            noticed += seen
            print(f"{'noticed ' if seen else 'SURVIVED'}  {fault.group}: {fault.name}", flush=True)
    print(f"{noticed} of {len(every)} noticed")
    return 0 if noticed == len(every) else 1


if __name__ == "__main__":
    sys.exit(main())

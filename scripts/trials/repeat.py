"""Whether tests with processes, browsers, servers and clusters pass every time, on a machine that is busy.

    python scripts/trials/repeat.py                               # each group twenty times
    python scripts/trials/repeat.py --times 3 server browser      # two groups three times
    python scripts/trials/repeat.py server --in tests/client -n 0 # a part of a group, in one process

A group is a marker: tests that ask a listening server, that drive a browser, that start a Ray cluster. The
group `others` has the tests of commands, service and client without one: they start processes and threads.
Runs pytest again and again beside one busy process a core, and prints every test that failed in any run, with
how often, and the end of its report. Exit status: 0 if none did.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {  # and where their tests are: collecting all others takes longer than some of these
    "server": ("tests/service", "tests/client", "tests/cli/test_remote.py"),
    "browser": ("tests/service",),
    "ray": ("tests/cluster",),
    "others": ("tests/cli", "tests/service", "tests/client", "tests/integrations", "tests/test_processes.py"),
}
EXPRESSIONS = {"others": "not (server or browser or ray)"}
REPORT_LINES = 40
BUSY = "while True: pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)} [default: all]")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--in", dest="folder", help="a file or folder instead of all of a group")
    parser.add_argument("-n", dest="processes", type=int, default=2, help="test processes beside each other")
    parser.add_argument("--no-load", action="store_true", help="no busy processes: the machine is under load")
    arguments = parser.parse_args()
    groups = arguments.groups or list(GROUPS)
    if unknown := set(groups) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}; use {', '.join(GROUPS)}")
    failures: Counter[str] = Counter()
    with (
        busy(0 if arguments.no_load else os.cpu_count() or 1),
        tempfile.TemporaryDirectory(prefix="repeat-") as scratch,
    ):
        for group in groups:
            for number in range(1, arguments.times + 1):
                suites = (arguments.folder,) if arguments.folder else GROUPS[group]
                passed, failed = run(group, suites, arguments.processes, Path(scratch))
                failures.update(failed.keys())
                print(
                    f"{group} {number} of {arguments.times}: {passed} passed, {len(failed)} failed",
                    flush=True,
                )
                for name, report in failed.items():
                    print(f"  {name}\n{textwrap.indent(report, '    ')}", flush=True)
    print(f"\nfailed in any of {arguments.times} runs of {', '.join(groups)}: {len(failures)}")
    for name, count in failures.most_common():
        print(f"  {count} of {arguments.times}  {name}")
    sys.exit(bool(failures))


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep as many cores busy while the block runs."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run(group: str, suites: Sequence[str], processes: int, scratch: Path) -> tuple[int, dict[str, str]]:
    """Run a group once: how many tests passed, and the end of the report of each that failed."""
    report = scratch / "report.xml"
    report.unlink(missing_ok=True)
    options = ["-q", "-m", EXPRESSIONS.get(group, group), f"--junitxml={report}"]
    options += ["-n", str(processes), "--dist", "loadfile"]
    options += ["-p", "no:cacheprovider", f"--basetemp={scratch / 'run'}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *suites],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    ended = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    if not report.exists():
        return 0, {f"pytest ended with status {done.returncode}": ended}
    cases = list(xml.parse(report).iter("testcase"))
    failed = {f"{one.get('classname')}::{one.get('name')}": text for one in cases if (text := _report(one))}
    passed = sum(not len(one) for one in cases)  # a skipped one has a child, too
    if done.returncode and not failed:
        failed = {f"pytest ended with status {done.returncode}": ended}
    return passed, failed


def _report(case: xml.Element) -> str:
    """The end of the report of a failed test; empty if it did not fail."""
    texts = [f"{one.get('message')}\n{one.text}" for one in case if one.tag in ("failure", "error")]
    return "\n".join("\n".join(texts).splitlines()[-REPORT_LINES:])


if __name__ == "__main__":
    main()

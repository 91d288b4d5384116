"""Whether the tests with browsers, servers and clusters pass every time, on a machine that is busy besides.

    python scripts/trials/repeat.py                        # twenty times
    python scripts/trials/repeat.py --times 3 tests/client

Runs pytest again and again beside one busy process a core, and prints every test that failed in any run, with
how often. Exit status: 0 if none did.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITES = ("tests/service", "tests/client", "tests/cluster", "tests/cli/test_remote.py")
BUSY = "while True: pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("suites", nargs="*", default=SUITES, help="what pytest runs (default: %(default)s)")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2, help="test processes beside each other")
    arguments = parser.parse_args()
    failures: Counter[str] = Counter()
    with busy(os.cpu_count() or 1), tempfile.TemporaryDirectory() as scratch:
        for number in range(1, arguments.times + 1):
            failed = run(arguments.suites, arguments.processes, Path(scratch))
            failures.update(failed)
            print(f"run {number} of {arguments.times}: {len(failed)} failed", *failed, sep="\n  ", flush=True)
    print(f"\nfailed in any of {arguments.times} runs: {len(failures)}")
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


def run(suites: list[str], processes: int, scratch: Path) -> list[str]:
    """Run the suites once; returns the names of the tests that failed, and pytest itself if it did."""
    report = scratch / "report.xml"
    report.unlink(missing_ok=True)
    options = ["-q", "-n", str(processes), "--dist", "loadfile", f"--junitxml={report}"]
    options += ["-p", "no:cacheprovider", f"--basetemp={scratch / 'run'}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *suites],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if not report.exists():
        return [f"pytest ended with status {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}"]
    cases = xml.parse(report).iter("testcase")
    failed = [f"{one.get('classname')}::{one.get('name')}" for one in cases if _failed(one)]
    return failed or ([f"pytest ended with status {done.returncode}"] if done.returncode else [])


def _failed(case: xml.Element) -> bool:
    return any(part.tag in ("failure", "error") for part in case)


if __name__ == "__main__":
    main()

"""Lines and branches of dsearch that its tests reach, by coverage.py.

    scripts/test --coverage            runs the tests under coverage.py, and this at the end
    scripts/test --coverage -m quick   a part of them: a row of its own
    python scripts/bench/code_coverage.py --recorded   print what is recorded, as CI does

Each row is a run of its own: what was run, what it reached, and at which commit. A whole run of 9,572 tests
took 22 min 20 s and 30 CPU minutes beside other work (14 min without coverage.py, in quiet), which is why CI
prints the record and does not measure.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

from records import FOLDER, Record, describe_machine, present_commit, read_record, today, write_record

NAME = "coverage"
COLUMNS = ["tests", "lines", "branches", "day", "commit"]
# What coverage.py says of the data of a process that was killed while it wrote it.
_CUT_OFF = re.compile(
    r"(Couldn't use data file|Data file) .*"
    r"(malformed|no such table|not a database|journal file to roll back|isn't a coverage data file)"
)
_MOST_CUT_OFF = 0.2  # of the files: tests that kill processes leave some, a full disk most


def combine(folder: Path) -> str:
    """Combine the data files of a folder. Returns a sentence about those that were cut off.

    Raises:
        ValueError: more were cut off than by tests that kill processes. coverage.py raises errors of its own.
    """
    from coverage import Coverage
    from coverage.data import combinable_files

    measured = Coverage()
    files = combinable_files(measured.config.data_file, [str(folder)])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        measured.combine([str(folder)], strict=True)
    measured.save()
    others = [text for one in said if not _CUT_OFF.match(text := str(one.message))]
    for text in others:
        print(text, file=sys.stderr)
    cut_off = len(said) - len(others)
    told = f"coverage: {cut_off} of {len(files)} data files were cut off, as by the tests that kill processes"
    if cut_off > _MOST_CUT_OFF * len(files):
        raise ValueError(f"{told}, which are too many: is the disk full?")
    return told


def totals(report: Path) -> tuple[str, str]:
    """Shares of lines and branches in a report of `coverage json`."""
    found = json.loads(report.read_text("utf-8"))["totals"]
    shares = [
        found["covered_lines"] / max(found["num_statements"], 1),
        found["covered_branches"] / max(found["num_branches"], 1),
    ]
    return f"{shares[0]:.1%}", f"{shares[1]:.1%}"


def with_row(record: Record | None, row: list[str]) -> Record:
    """The record with this row in the place of an earlier one of the same tests."""
    if record is None:
        record = Record("Other", "", [], "", "", "", COLUMNS, [])
    rows = sorted([row, *(one for one in record.rows if one[0] != row[0])], key=lambda one: len(one[0]))
    return replace(
        record,
        title="Lines and branches that the tests reach",
        command=[one[0].replace("scripts/test", "scripts/test --coverage") for one in rows],
        date=row[3],
        commit=row[4],
        machine=describe_machine(),
        rows=rows,
    )


def sentence(row: list[str]) -> str:
    """What CI's summary says of one run."""
    tests, lines, branches, day, commit = row
    return f"coverage of {tests}, measured at {commit} on {day}: lines {lines}, branches {branches}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tests", nargs="?", default="scripts/test", help="what was run, as in the record")
    parser.add_argument("--recorded", action="store_true", help="print the record alone")
    parser.add_argument("--combine", metavar="FOLDER", type=Path, help="combine the data files of a folder")
    arguments = parser.parse_args()
    if arguments.combine:
        try:
            print(combine(arguments.combine))
        except ValueError as error:
            sys.exit(str(error))
        return
    path = FOLDER / f"{NAME}.json"
    record = read_record(path) if path.is_file() else None
    if arguments.recorded:
        print(*(map(sentence, record.rows) if record else ["coverage was never measured"]), sep="\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run([sys.executable, "-m", "coverage", "json", "-q", "-o", str(report)], check=True)
        row = [arguments.tests, *totals(report), today(), present_commit()]
    write_record(NAME, with_row(record, row))
    print(sentence(row))


if __name__ == "__main__":
    main()

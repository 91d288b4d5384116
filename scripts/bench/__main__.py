"""Measure, record and render: `python scripts/bench`.

    python scripts/bench                               every part, a table each; minutes to an hour
    python scripts/bench peers exact --quick           two parts, small, to see that they run
    python scripts/bench --run exact exact.py --documents 1000000    run one script and record its table
    python scripts/bench --render                      write RESULTS.md from the committed records

A part prints its tables and, without --quick, writes `results/PART.json` with command, date, commit and
machine; topic, title and notes of an earlier record stay. Then RESULTS.md is rendered. A part that fails or
takes longer than --limit is reported, changes no record, and the next part runs; the exit code is then 1.
Scripts and their arguments follow --run, so it comes last.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from records import (
    FOLDER,
    RENDERED,
    Record,
    describe_machine,
    parse_tables,
    present_commit,
    read_record,
    read_records,
    render,
    today,
    write_record,
)

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Part:
    """One script with its arguments for a full and for a quick run."""

    title: str
    full: str
    quick: str
    peers: bool = False  # takes --peers PYTHON


PARTS = {
    "peers": Part(
        "One query and indexing, in process", "peers.py", "peers.py --documents 100 --rounds 1", peers=True
    ),
    "service": Part(
        "Over HTTP",
        "service.py --backends torch openvino",
        "service.py --documents 100 --seconds 2 --rounds 1 --cold-documents 1000",
        peers=True,
    ),
    "exact": Part(
        "Exact search",
        "exact.py --documents 1000000 --batches 1 16 64",
        "exact.py --documents 20000 --batches 1 64 --rounds 1",
    ),
    "approximate": Part(
        "Approximate search", "approximate.py", "approximate.py --documents 5000 --rounds 1", peers=True
    ),
    "rates": Part("Training", "rates.py", "rates.py --documents 100 --pairs 16 --rounds 1"),
    "crowded": Part("A crowded machine", "crowded.py", "crowded.py --documents 30 --queries 20"),
    "attention": Part("Soft attention", "attention.py", "attention.py --documents 20000 --repeats 1"),
    "large": Part("A million documents", "large.py", "large.py --documents 5000"),
    "filters": Part("Filters", "filters.py", "filters.py --documents 5000"),
    "store": Part("Writing", "store.py", "store.py --rounds 1"),
}


def main() -> int:
    """Run what the arguments name; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default all")
    parser.add_argument("--quick", action="store_true", help="small sizes; nothing is recorded")
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter with the systems that are compared")
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds for one part")
    parser.add_argument("--render", action="store_true", help="only write RESULTS.md from the records")
    parser.add_argument(
        "--run", nargs=argparse.REMAINDER, metavar="NAME SCRIPT", help="record one script's table as NAME"
    )
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if options.run is not None and len(options.run) < 2:
        parser.error("--run takes a name, a script of scripts/bench and its arguments")
    failed = False
    if options.run:
        name, *words = options.run
        failed = not measure(name, name, words, options.limit, record=not options.quick)
    elif not options.render:
        for name in options.parts or PARTS:
            part = PARTS[name]
            words = shlex.split(part.quick if options.quick else part.full)
            if part.peers and options.peers:
                words += ["--peers", options.peers]
            failed |= not measure(name, part.title, words, options.limit, record=not options.quick)
    if options.render or not options.quick:
        RENDERED.write_text(render(read_records()), "utf-8")
    return int(failed)


def measure(name: str, title: str, words: list[str], limit: float, *, record: bool) -> bool:
    """Run a script, show its output and record its tables as NAME, NAME-2, …; return False if it fails."""
    script = HERE / words[0]
    command = shlex.join(["python", f"scripts/bench/{words[0]}", *words[1:]])
    print(f"\n## {title}\n\n    {command}\n", flush=True)
    if not script.is_file():
        print(f"(there is no {words[0]} in {HERE.name})")
        return False
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        try:
            done = subprocess.run(
                [sys.executable, str(script), *words[1:]], stdout=output, timeout=limit, check=False
            )
            problem = f"exit code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"not done in {limit:g} s"
        output.seek(0)
        printed = output.read()
    print(printed, flush=True)
    tables = parse_tables(printed)
    if not tables:  # a script that prints lines
        tables = [(["output"], [[line.strip()] for line in printed.splitlines() if line.strip()])]
    if problem:
        print(f"({problem}; nothing recorded)", flush=True)
        return False
    if record:
        for number, (columns, rows) in enumerate(tables, 1):
            of_table = name if number == 1 else f"{name}-{number}"
            write_record(of_table, _renewed(of_table, title, command, columns, rows))
    return True


def _renewed(name: str, title: str, command: str, columns: list[str], rows: list[list[str]]) -> Record:
    path = FOLDER / f"{name}.json"
    earlier = read_record(path) if path.exists() else None
    return Record(
        topic=earlier.topic if earlier else "Other",
        title=earlier.title if earlier else title,
        command=[command],
        date=today(),
        commit=present_commit(),
        machine=describe_machine(),
        columns=columns,
        rows=rows,
        notes=earlier.notes if earlier else [],
    )


if __name__ == "__main__":
    sys.exit(main())

"""Committed measurements: one JSON file a table in `results/`, rendered to `RESULTS.md`.

A record is an object with

    topic       heading that the table stands under, one of TOPICS
    title       what is measured, in one line
    command     list of the commands that print the figures
    date        day of the measurement, YYYY-MM-DD
    commit      commit that was measured, or the one that committed the figures
    machine     processor, cores, GPU
    columns     names of the columns; an interval has a column of its own
    rows        list of rows, one text a column, as printed by the command
    notes       optional sentences below the table: method, choices made in view of the figures
    chart       optional name of a picture of the same figures, in `results/`

Figures are text, because the digits that a command prints are part of what it claims. Losses and missed aims
stand in the same table as gains.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path(__file__).parent / "results"
RENDERED = Path(__file__).parent / "RESULTS.md"
TOPICS = (
    "Retrieval",
    "Gate, clicks and values",
    "Attention and index",
    "GPU",
    "Service",
    "In process",
    "Cluster",
    "Durability",
    "Choices of design",
    "Other",
)
_HEAD = """# Results

Written by `python scripts/bench --render` from `results/*.json`; edit the records, never this file. An aim
is the figure that a release set itself; where a figure misses it, both stand in the same row. Commands run
from the root of a checkout; `DATA` is a folder of data sets in BEIR's layout, `PYTHON` the interpreter of an
environment with the systems that are compared.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One table of measurements."""

    topic: str
    title: str
    command: list[str]
    date: str
    commit: str
    machine: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    chart: str = ""

    def __post_init__(self) -> None:
        if self.topic not in TOPICS:
            raise ValueError(f"{self.title}: topic {self.topic!r} is none of {', '.join(TOPICS)}")
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: {len(row)} cells for {len(self.columns)} columns: {row}")


def read_record(path: Path) -> Record:
    """Read one record; ValueError names the file and the problem."""
    content = json.loads(path.read_text("utf-8"))
    names = {one.name for one in fields(Record)}
    unknown, missing = content.keys() - names, names - {"notes", "chart"} - content.keys()
    if unknown or missing:
        raise ValueError(f"{path.name}: unknown {sorted(unknown)}, missing {sorted(missing)}")
    return Record(**content)


def read_records(folder: Path = FOLDER) -> dict[str, Record]:
    """Read all records by name, in the order of topics and of names within a topic."""
    records = {path.stem: read_record(path) for path in sorted(folder.glob("*.json"))}
    return dict(sorted(records.items(), key=lambda item: (TOPICS.index(item[1].topic), item[0])))


def write_record(name: str, record: Record, folder: Path = FOLDER) -> Path:
    """Write one record, a row a line, so that a changed figure is a changed line."""
    content = asdict(record)
    if not record.chart:
        del content["chart"]
    rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in content.pop("rows"))
    text = json.dumps({**content, "rows": "ROWS"}, ensure_ascii=False, indent=1)
    path = folder / f"{name}.json"
    path.write_text(text.replace('"ROWS"', f"[\n  {rows}\n ]") + "\n", "utf-8")
    return path


def render(records: dict[str, Record]) -> str:
    """Render the text of RESULTS.md."""
    parts = [_HEAD]
    topic = None
    for name, record in records.items():
        if record.topic != topic:
            topic = record.topic
            parts.append(f"## {topic}\n")
        parts.append(_section(name, record))
    return "\n".join(parts)


def _section(name: str, record: Record) -> str:
    lines = [f"### {record.title}", ""]
    lines += [f"{record.date} · commit {record.commit} · {record.machine} · `results/{name}.json`", ""]
    lines += [f"    {command}" for command in record.command]
    lines += ["", _row(record.columns), "|" + "---|" * len(record.columns)]
    lines += [_row(row) for row in record.rows]
    if record.chart:
        lines += ["", f"![{record.title}](results/{record.chart})"]
    if record.notes:
        lines += ["", " ".join(record.notes)]
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def parse_tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """Parse the Markdown tables of a script's output: the columns and the rows of each."""
    tables: list[tuple[list[str], list[list[str]]]] = []
    lines = [line.strip() for line in text.splitlines()]
    inside = False
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if not line.startswith("|"):
            inside = False
        elif not inside and following.startswith("|") and not following.strip("|-: "):
            tables.append((_cells(line), []))
            inside = True
        elif inside and line.strip("|-: "):
            tables[-1][1].append(_cells(line))
    return tables


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def describe_machine() -> str:
    """Describe this machine: processor, cores, GPU."""
    gpu = ""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        gpu = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pass
    return f"{platform.machine()}, {os.cpu_count()} cores, {gpu.replace(chr(10), ', ') or 'no GPU'}"


def present_commit() -> str:
    """Return the short hash of the checked-out commit, with + if tracked files differ from it."""
    root = Path(__file__).parents[2]
    try:
        git = ["git", "-C", str(root)]
        head = subprocess.run(
            [*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True
        )
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], check=False).returncode
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changed else "")


def today() -> str:
    """Return today's date."""
    return f"{datetime.now(UTC):%Y-%m-%d}"

#!/usr/bin/env python3
"""Count modules and lines, and fail at import circles and at class names that stand twice.

    python scripts/tools/house.py              the table
    python scripts/tools/house.py --check      only the contracts that are broken; exit code 1 if any is
    python scripts/tools/house.py --entered    also the files that one search and one training enter (slow)

Imports count wherever they stand: at the top of a file, under TYPE_CHECKING, inside a function.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dsearch"
REPEATS_CLASS_NAMES = ("integrations",)  # adapters carry the names of their frameworks

SHOWN = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One count, its bound (None: none), and what it counts."""

    name: str
    count: int
    bound: int | None
    items: tuple[str, ...] = ()

    @property
    def exceeded(self) -> bool:
        """Whether the count is above its bound."""
        return self.bound is not None and self.count > self.bound


class Modules:
    """The package's modules: their syntax trees and the imports between them."""

    def __init__(self, package: Path) -> None:
        self.paths = {self._name(path, package): path for path in sorted(package.rglob("*.py"))}
        self.trees = {name: ast.parse(path.read_text("utf-8")) for name, path in self.paths.items()}
        self.imports = {name: set(self._imported(name)) - {name} for name in self.trees}

    @staticmethod
    def _name(path: Path, package: Path) -> str:
        parts = path.relative_to(package.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def _imported(self, name: str) -> Iterator[str]:
        for node in ast.walk(self.trees[name]):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.trees)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module in self.trees:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in self.trees else node.module


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in imports[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                components.append(sorted(component))

    sys.setrecursionlimit(10_000)
    for name in imports:
        if name not in index:
            visit(name)
    return components


def repeated_classes(modules: Modules) -> dict[str, list[str]]:
    """Public class names that stand in more than one module."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, tree in modules.trees.items():
        if name.split(".")[1:2] and name.split(".")[1] in REPEATS_CLASS_NAMES:
            continue
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def lines_of(path: Path) -> tuple[int, int]:
    """All lines of a file, and those with code: neither blank, comment nor docstring."""
    source = path.read_text("utf-8")
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (
            tokenize.COMMENT,
            tokenize.NL,
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        ):
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return source.count("\n"), len(code)


def rows() -> list[Row]:
    """Every count of the table."""
    modules = Modules(PACKAGE)
    loops = circles(modules.imports)
    classes = repeated_classes(modules)
    counts = [lines_of(path) for path in modules.paths.values()]
    return [
        Row("files in import circles", sum(map(len, loops)), 0, tuple(" ⇄ ".join(loop) for loop in loops)),
        Row("public class names in several modules", len(classes), 0, tuple(classes)),
        Row("modules", len(modules.paths), None),
        Row("lines", sum(total for total, _ in counts), None),
        Row("lines of code", sum(code for _, code in counts), None),
    ]


def entered() -> list[Row]:
    """Files of the package whose functions one warm HTTP search, and one `dsearch train`, call."""
    import json
    import tempfile
    import threading

    sys.path.insert(0, str(ROOT))
    files: set[str] = set()
    recording = False

    def record(frame: Any, event: str, argument: object) -> None:
        if not recording or event != "call" or frame.f_code.co_name == "<module>":
            return
        if frame.f_code.co_filename.startswith(str(PACKAGE)):
            files.add(Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix())

    threading.setprofile(record)
    sys.setprofile(record)
    from fastapi.testclient import TestClient

    from dsearch.cli import main as command
    from dsearch.engine import SearchEngine
    from dsearch.service import create_app
    from dsearch.types import Document

    topics = ("bread", "tides", "bees", "rust", "kettles", "maps", "glass", "wool", "salt", "clocks")
    texts = {f"d{i}": f"{topics[i % 10]} and {topics[i // 10]}, number {i}" for i in range(60)}
    counted: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        home, data = Path(folder) / "index", Path(folder) / "data"
        with SearchEngine(home) as engine:
            engine.create("notes").ingest([Document(id, text) for id, text in texts.items()])
            with TestClient(create_app(engine, query_timeout_s=60), base_url="http://127.0.0.1") as client:
                for last in (False, False, True):
                    recording = last
                    answer = client.post("/v1/collections/notes/search", json={"query": f"bread {last}"})
                    assert answer.status_code == 200, answer.text
                recording = False
        counted.append(Row("files that one HTTP search enters", len(files), 40, tuple(sorted(files))))
        (data / "qrels").mkdir(parents=True)
        lines = [
            json.dumps({"_id": f"q{i}", "text": f"about {text}"}) for i, text in enumerate(texts.values())
        ]
        (data / "queries.jsonl").write_text("\n".join(lines))
        pairs = [f"q{i}\t{id}\t1" for i, id in enumerate(texts)]
        (data / "qrels" / "train.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *pairs]))
        files.clear()
        recording = True
        arguments = ["train", "-c", "notes", "--data", str(data), "--home", str(home), "--epochs", "1"]
        sys.argv = ["dsearch", *arguments]
        with contextlib.suppress(SystemExit):
            command()
        recording = False
    sys.setprofile(None)
    counted.append(Row("files that `dsearch train` enters", len(files), 70, tuple(sorted(files))))
    return counted


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--all", action="store_true", help="name everything that is counted")
    parser.add_argument("--entered", action="store_true", help="files that a search and a training enter")
    options = parser.parse_args()
    table = [*rows(), *(entered() if options.entered else [])]
    bad = [row for row in table if row.exceeded]
    for row in bad if options.check else table:
        bound = "" if row.bound is None else f"  (at most {row.bound})"
        print(f"{row.name}: {row.count:,}{bound}")
        shown = row.items if options.all else row.items[:SHOWN]
        for item in shown if row.exceeded or options.all else ():
            print(f"    {item}")
        if row.exceeded and len(shown) < len(row.items):
            print(f"    … {len(row.items) - len(shown)} more; --all names them")
    return 1 if options.check and bad else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Write what the product says and answers, to compare one commit with another; or count its parts.

    python scripts/tools/snapshot.py FOLDER          openapi.json, help.txt and answers.json
    python scripts/tools/snapshot.py --compare A B   what differs; answers by more than 1e-6
    python scripts/tools/snapshot.py --count         routes, commands, options, objectives, lines

The package is the one that Python imports; PYTHONPATH=CHECKOUT takes another. Answers are of 200 summary
lines of Python's own documentation, over a fixed sample of it, by the default encoder on torch.
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import Request, urlopen

import typer

import dsearch
from dsearch.cli.grouped_help import app
from dsearch.corpus import python_corpus

MODES = ("dense", "keyword", "hybrid")
QUERIES, DOCUMENTS, LIMIT, CLOSE = 200, 1500, 10, 1e-6
PROSE = ("description", "summary", "title")
DSEARCH = [sys.executable, "-P", "-m", "dsearch"]  # not the package of the working directory
ENVIRONMENT = {"DSEARCH_BACKEND": "torch", "DSEARCH_QUERY_TIMEOUT_MS": "30000", "COLUMNS": "100"}


def main() -> None:
    os.environ.update(ENVIRONMENT)
    match sys.argv[1:]:
        case ["--compare", a, b]:
            print("\n".join(differences(Path(a), Path(b))) or "no difference")
        case ["--count"]:
            print("\n".join(f"{count:>8,} {what}" for what, count in counts().items()))
        case [folder] if not folder.startswith("-"):
            write_snapshot(Path(folder))
        case _:
            raise SystemExit(__doc__)


def write_snapshot(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "help.txt").open("w") as file:
        for path, _ in commands():
            text = subprocess.check_output([*DSEARCH, *path, "--help"], text=True)
            file.write(f"$ {' '.join(('dsearch', *path))}\n{text}\n")
    corpus, chance = python_corpus(), Random(0)
    queries = [query.text for query in chance.sample(corpus.queries, QUERIES)]
    sample = chance.sample(corpus.documents, DOCUMENTS)
    lines = [json.dumps({"id": one.id, "title": one.title, "text": one.text}) for one in sample]
    with tempfile.TemporaryDirectory() as home:
        Path(home, "documents.jsonl").write_text("\n".join(lines))
        subprocess.check_call([*DSEARCH, "index", f"{home}/documents.jsonl", "-c", "python", "--home", home])
        with server(home) as origin:
            described = json.load(urlopen(f"{origin}/openapi.json"))
            answers = {mode: {query: hits(origin, query, mode) for query in queries} for mode in MODES}
    for name, content in {"openapi": described, "answers": answers}.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def hits(origin: str, query: str, mode: str) -> list[list[Any]]:
    body = json.dumps({"query": query, "mode": mode, "limit": LIMIT, "operators": False}).encode()
    request = Request(f"{origin}/v1/collections/python/search", body, {"content-type": "application/json"})
    return [[hit["id"], hit["score"], hit["weight"]] for hit in json.load(urlopen(request))["hits"]]


@contextmanager
def server(home: str) -> Iterator[str]:
    holder, command = Path(home, "LOCK.holder"), [*DSEARCH, "serve", "--home", home, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None and not (holder.exists() and json.loads(holder.read_text())["url"]):
                time.sleep(0.1)
            yield json.loads(holder.read_text())["url"]
        finally:
            process.terminate()


def commands() -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(app))]
    for path, command in found:
        found += [((*path, name), inner) for name, inner in getattr(command, "commands", {}).items()]
    return found


def counts() -> dict[str, int]:
    with tempfile.TemporaryDirectory() as home, server(home) as origin:
        described = json.load(urlopen(f"{origin}/openapi.json"))
    schemas = dict(flattened(described["components"]["schemas"]))
    options = [one for _, command in commands() for one in command.params if one.param_type_name == "option"]
    root = Path(dsearch.__file__).parents[1]
    tests = subprocess.check_output(["git", "-C", root, "ls-files", "tests"], text=True).split()
    return {
        "routes": sum(map(len, described["paths"].values())),
        "commands with sub-commands": len(commands()) - 1,
        "options, by name": len({max(one.opts, key=len) for one in options}),
        "options that take a value, by name": len({max(o.opts, key=len) for o in options if not o.is_flag}),
        "objectives": len({schemas[at] for at in schemas if ".objective." in at and ".enum." in at}),
        "lines of dsearch": sum(path.read_bytes().count(b"\n") for path in root.glob("dsearch/**/*.py")),
        "lines of tests with lists": sum((root / name).read_bytes().count(b"\n") for name in tests),
    }


def flattened(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(content, dict | list) and content:
        if isinstance(content, list):
            content = {part if isinstance(part, str) else at: part for at, part in enumerate(content)}
        for key, value in content.items():
            yield from flattened(value, f"{path}.{key}")
    else:
        yield path, content


def differences(a: Path, b: Path) -> Iterator[str]:
    old, new = (dict(flattened(json.loads((of / "openapi.json").read_text()))) for of in (a, b))
    for path in sorted(old | new):
        prose = ".example" in path or path.rpartition(".")[2] in PROSE
        if not prose and old.get(path, ...) != new.get(path, ...):
            yield f"openapi{path}: {old.get(path, 'absent')} → {new.get(path, 'absent')}"
    texts = [(of / "help.txt").read_text().splitlines() for of in (a, b)]
    yield from difflib.unified_diff(*texts, str(a), str(b), n=0, lineterm="")
    first, second = (json.loads((of / "answers.json").read_text()) for of in (a, b))
    for mode, answers in first.items():
        differing = [query for query, hits in answers.items() if not close(hits, second[mode].get(query, []))]
        if differing:
            yield f"answers, {mode}: {len(differing)} of {len(answers)} differ, such as {differing[0]!r}"


def close(some: Any, others: Any) -> bool:
    if isinstance(some, list):
        return len(some) == len(others) and all(map(close, some, others))
    return some == others or (isinstance(some, float) and abs(some - others) <= CLOSE)


if __name__ == "__main__":
    main()

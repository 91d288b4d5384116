#!/usr/bin/env python3
"""Upserts per second, against bare SQLite loops that sync as often.

    python scripts/bench/store.py                        documents/s at batch 32 and the ratios
    python scripts/bench/store.py --rounds 9 --json out.json

Every line writes the same documents with given embeddings. Lines take turns, round by round, each into a new
folder; figures are medians over the rounds, and ratios are medians of the ratios within a round.

| line | does |
|---|---|
| bare SQLite | two INSERTs per document; per batch a commit (WAL, FULL), 4 KB synced beside it |
| bare SQLite, same rows | the same loop into the store's own tables, zeros for digests |
| store | `Store.upsert`: checks, digests, look-up of each id, set digest; the same rows, commits and syncs |
| store, 8 threads | the same batches from eight threads: group commit, so fewer syncs |

The second line beside the first is the price of rows that tell damage and changes (digests, operation
numbers, the index that finds them, the row of the state), whoever writes them; the third beside the second is
the price of checking and hashing. Where a sync costs milliseconds, both vanish.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from dsearch.store import Store
from dsearch.store.sqlite.connection import connect
from dsearch.store.sqlite.schema import CollectionMeta, create_tables
from dsearch.store.sqlite.watermark import SLOT_BYTES, sync_file
from dsearch.types import Document

Batch = tuple[list[Document], np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=6_400, help="per line and round")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--characters", type=int, default=1000, help="of text per document")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: a temporary folder")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()

    batches = make_batches(options)
    rates: dict[str, list[float]] = {name: [] for name in LINES}
    for turn in range(options.rounds):
        for name in [*LINES][turn % len(LINES) :] + [*LINES][: turn % len(LINES)]:
            home = Path(tempfile.mkdtemp(dir=options.folder))
            try:
                rates[name].append(options.documents / LINES[name](home, batches, options.dimension))
            finally:
                shutil.rmtree(home)
    report = {
        "environment": {
            "sqlite": sqlite3.sqlite_version,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            **{key: value for key, value in vars(options).items() if isinstance(value, int)},
        },
        "results": [result(name, rates) for name in rates],
    }
    print_table(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def result(name: str, rates: dict[str, list[float]]) -> dict:
    found: dict = {"name": name, "documents_per_s": statistics.median(rates[name])}
    for key, bare in (("ratio", "bare SQLite"), ("ratio_same_rows", "bare SQLite, same rows")):
        ratios = [one / other for one, other in zip(rates[name], rates[bare], strict=True)]
        found |= {key: statistics.median(ratios), f"{key}_range": [min(ratios), max(ratios)]}
    return found


def make_batches(options: argparse.Namespace) -> list[Batch]:
    generator = np.random.default_rng(0)
    words = ["".join(chr(97 + c) for c in generator.integers(26, size=7)) for _ in range(2000)]
    batches: list[Batch] = []
    for start in range(0, options.documents, options.batch):
        documents = [
            Document(
                f"document-{start + i}",
                " ".join(generator.choice(words, options.characters // 8)),
                title=" ".join(generator.choice(words, 6)),
                metadata={"year": int(generator.integers(1990, 2026)), "lang": "en"},
            )
            for i in range(min(options.batch, options.documents - start))
        ]
        vectors = generator.normal(size=(len(documents), options.dimension)).astype(np.float32)
        batches.append((documents, vectors))
    return batches


def bare_sqlite(home: Path, batches: list[Batch], dimension: int) -> float:
    connection = sqlite3.connect(home / "bare.db", isolation_level=None)
    connection.execute("PRAGMA page_size = 8192")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE document"
        " (row INTEGER PRIMARY KEY, id TEXT UNIQUE, title TEXT, text TEXT, metadata TEXT)"
    )
    connection.execute("CREATE TABLE embedding (row INTEGER PRIMARY KEY, vector BLOB)")

    def write(number: int, rows: range, documents: list[Document], vectors: np.ndarray) -> None:
        connection.executemany(
            "INSERT INTO document VALUES (?, ?, ?, ?, ?)",
            [
                (r, d.id, d.title, d.text, json.dumps(d.metadata))
                for r, d in zip(rows, documents, strict=True)
            ],
        )
        connection.executemany(
            "INSERT INTO embedding VALUES (?, ?)",
            [(r, vector.tobytes()) for r, vector in zip(rows, vectors, strict=True)],
        )

    return bare_loop(home, batches, connection, write)


def bare_same_rows(home: Path, batches: list[Batch], dimension: int) -> float:
    connection = connect(home, writer=True, create=True)
    digest = bytes(32)
    create_tables(connection, CollectionMeta("c", {}, dimension), digest)

    def write(number: int, rows: range, documents: list[Document], vectors: np.ndarray) -> None:
        connection.executemany(
            "INSERT INTO document VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (r, d.id, d.title, d.text, json.dumps(d.metadata), None, digest, number, None)
                for r, d in zip(rows, documents, strict=True)
            ],
        )
        connection.executemany(
            "INSERT INTO embedding VALUES (?, ?, ?, ?)",
            [(r, number, digest, vector.tobytes()) for r, vector in zip(rows, vectors, strict=True)],
        )
        connection.execute(
            "UPDATE state SET sequence = ?, last_row = ?, documents = ?", (number, rows[-1], rows[-1])
        )

    return bare_loop(home, batches, connection, write)


def bare_loop(
    home: Path,
    batches: list[Batch],
    connection: sqlite3.Connection,
    write: Callable[[int, range, list[Document], np.ndarray], None],
) -> float:
    mark = os.open(home / "mark", os.O_RDWR | os.O_CREAT)
    os.pwrite(mark, bytes(2 * SLOT_BYTES), 0)
    started = time.perf_counter()
    row = 0
    for number, (documents, vectors) in enumerate(batches, start=1):
        rows = range(row + 1, row + 1 + len(documents))
        row += len(documents)
        connection.execute("BEGIN IMMEDIATE")
        write(number, rows, documents, vectors)
        connection.execute("COMMIT")
        os.pwrite(mark, bytes(SLOT_BYTES), SLOT_BYTES * (number % 2))
        sync_file(mark)
    took_s = time.perf_counter() - started
    os.close(mark)
    connection.close()
    return took_s


def store(home: Path, batches: list[Batch], dimension: int) -> float:
    with Store.create(home / "c", name="c", encoder={}, dimension=dimension) as opened:
        started = time.perf_counter()
        for documents, vectors in batches:
            opened.upsert(documents, vectors)
        return time.perf_counter() - started


def store_threads(home: Path, batches: list[Batch], dimension: int) -> float:
    with (
        Store.create(home / "c", name="c", encoder={}, dimension=dimension) as opened,
        ThreadPoolExecutor(8) as pool,
    ):
        started = time.perf_counter()
        list(pool.map(lambda batch: opened.upsert(*batch), batches))
        return time.perf_counter() - started


LINES: dict[str, Callable[[Path, list[Batch], int], float]] = {
    "bare SQLite": bare_sqlite,
    "bare SQLite, same rows": bare_same_rows,
    "store": store,
    "store, 8 threads": store_threads,
}


def print_table(report: dict) -> None:
    print(f"{report['environment']}\n")
    print("| upserts, embeddings given | documents/s | of bare SQLite (rounds) | of the same rows (rounds) |")
    print("|---|---:|---:|---:|")
    for line in report["results"]:
        cells = [
            f"{line[key]:.2f} ({line[f'{key}_range'][0]:.2f}–{line[f'{key}_range'][1]:.2f})"
            for key in ("ratio", "ratio_same_rows")
        ]
        print(f"| {line['name']} | {line['documents_per_s']:,.0f} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()

"""What `verify` says of each change of each kind of row, and which of it can change an answer."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsearch.store import MemoryRow, Passages, Store, VerifyReport
from dsearch.store import verify as module
from dsearch.store.verify import verify
from dsearch.types import Document

WHOLE = "the collection as a whole: rows, deletions or operation numbers are not those acknowledged"


def vectors(*directions: int) -> np.ndarray:
    return np.eye(8, dtype=np.float32)[list(directions)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows 1 to 5: plain, with passages, deleted, superseded, and the pending version that superseded it."""
    folder = tmp_path_factory.mktemp("home") / "papers"
    documents = [Document(f"d{n}", f"text {n}", f"title {n}", {"n": n}, n / 2) for n in range(4)]
    cut = {1: Passages(np.array([[0, 9], [5, 20]]), vectors(5))}
    with Store.create(folder, name="papers", encoder={"name": "test"}, dimension=8) as store:
        store.upsert(documents, vectors(0, 1, 2, 3), passages=cut)
        store.delete(["d2"])
        store.upsert([Document("d3", "another text")])
        store.add_generation(1, manifest_digest="ab" * 32, rows=4, snapshot=1, record={})
        store.publish_generation(1)
        store.add_model("v1", "v0", {"gate": 0.5})
        store.add_judged([MemoryRow("one", vectors(4)[0], {1: 1.0})])
    return folder


@pytest.fixture
def filled(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "papers"))


def report_of(folder: Path, *statements: str) -> VerifyReport:
    with closing(sqlite3.connect(folder / "documents.db", isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.execute("BEGIN")
        return verify(connection)


def test_what_is_whole_is_counted(filled: Path) -> None:
    report = report_of(filled)
    assert (report.damage, report.ok) == ((), True)
    assert (report.documents, report.embeddings) == (3, 4)
    with Store.open(filled, readonly=True) as store:
        assert report.sequence == store.sequence


CHANGED: list[tuple[str, list[str]]] = [
    (
        "UPDATE document SET title = 'x' WHERE row = 1",
        ["row 1 (id 'd0'): text or metadata are not what was written"],
    ),
    ("UPDATE document SET metadata = '{}' WHERE row = 1", ["row 1 (id 'd0'): text or metadata are not what"]),
    ("UPDATE document SET value = NULL WHERE row = 1", ["row 1 (id 'd0'): text or metadata are not what"]),
    ("UPDATE document SET id = 'dx' WHERE row = 1", ["row 1 (id 'dx'): text or metadata are not what"]),
    (
        "UPDATE document SET text = CAST(text AS BLOB) WHERE row = 1",
        ["row 1 (id 'd0'): text or metadata are not"],
    ),
    (
        "UPDATE document SET digest = x'00' WHERE row = 1",
        ["row 1 (id 'd0'): its digest is not what was", WHOLE],
    ),
    (
        "UPDATE document SET digest = 'x' WHERE row = 1",
        ["row 1 (id 'd0'): its digest is not what was", WHOLE],
    ),
    ("UPDATE document SET written = 9 WHERE row = 1", [WHOLE]),
    (
        "UPDATE document SET written = 'x' WHERE row = 1",
        ["row 1 (id 'd0'): its operation numbers are not", WHOLE],
    ),
    (
        "UPDATE document SET written = -1 WHERE row = 1",
        ["row 1 (id 'd0'): its operation numbers are not", WHOLE],
    ),
    (
        "UPDATE document SET deleted = 'x' WHERE row = 3",
        ["row 3 (id 'd2'): its operation numbers are not", WHOLE],
    ),
    ("UPDATE document SET deleted = 99 WHERE row = 3", [WHOLE]),
    ("UPDATE embedding SET vector = x'00' WHERE row = 1", ["row 1: its embedding is not what was written"]),
    ("UPDATE embedding SET vector = 'x' WHERE row = 1", ["row 1: its embedding is not what was written"]),
    ("UPDATE embedding SET digest = 'x' WHERE row = 1", ["row 1: the digest of its embedding is not", WHOLE]),
    (
        "UPDATE embedding SET written = 'x' WHERE row = 1",
        ["row 1: its operation number is not what was", WHOLE],
    ),
    ("UPDATE passages SET spans = x'00'", ["row 2: its passages are not what was written"]),
    ("UPDATE passages SET vectors = 'x'", ["row 2: its passages are not what was written"]),
    (
        "UPDATE passages SET digest = 'x'",
        ["row 2: the digest of its passages is not what was written", WHOLE],
    ),
    (
        "UPDATE passages SET written = 'x'",
        ["row 2: the operation number of its passages is not what was", WHOLE],
    ),
    ("UPDATE passages SET row = 77", ["passages: 1 belong to no embedding", WHOLE]),
    ("DROP TABLE passages", [WHOLE]),
    *(
        (f"UPDATE judged SET {name} = 'x'", ["row 1 of the query memory: it is not what was written"])
        for name in ("text", "state", "grades", "source", "key")
    ),
    *(
        (
            f"UPDATE judged SET {name} = CAST({name} AS BLOB)",
            ["row 1 of the query memory: it is not what was"],
        )
        for name in ("text", "grades", "source", "key")
    ),
    (
        "UPDATE judged SET digest = 'x'",
        ["row 1 of the query memory: its digest is not what was written", WHOLE],
    ),
    ("UPDATE judged SET written = 'x'", ["row 1 of the query memory: its operation number is not", WHOLE]),
    ("DROP TABLE judged", [WHOLE]),
    *((f"UPDATE generation SET {name} = 9", [WHOLE]) for name in ("number", "rows", "snapshot", "written")),
    ("UPDATE generation SET manifest_digest = 'x'", [WHOLE]),
    ("UPDATE generation SET record = '[]'", [WHOLE]),
    ("UPDATE generation SET record = x'00'", ["table generation: 1 is not what was written", WHOLE]),
    *((f"UPDATE model SET {name} = 9", [WHOLE]) for name in ("number", "parent", "written")),
    ("UPDATE live SET number = 9", [WHOLE]),
    ("DELETE FROM live", [WHOLE]),
    ("UPDATE meta SET value = 'x' WHERE key = 'name'", [WHOLE]),
    ("DELETE FROM meta WHERE key = 'encoder'", ["the collection's own record cannot be read ('encoder')"]),
    ("UPDATE state SET documents = 4", ["live documents: 3 found, 4 recorded"]),
    ("UPDATE state SET tombstones = 1", ["deleted rows: 2 found, 1 recorded"]),
    ("DELETE FROM pending", ["live documents without an embedding that pending rows do not list: 1"]),
    ("INSERT INTO pending VALUES (1, 5)", ["pending rows, listed though they have an embedding: 1"]),
    (
        "DELETE FROM document WHERE row = 3",
        [WHOLE, "deleted rows: 1 found, 2 recorded", "embeddings: 1 belong to no document"],
    ),
    (
        "DELETE FROM embedding WHERE row = 1",
        [WHOLE, "live documents without an embedding that pending rows do not list: 1"],
    ),
]


@pytest.mark.parametrize(("statement", "expected"), CHANGED)
def test_each_change_is_named(filled: Path, statement: str, expected: list[str]) -> None:
    report = report_of(filled, statement)
    assert len(report.damage) == len(expected), report.damage
    for found, beginning in zip(report.damage, expected, strict=True):
        assert found.startswith(beginning)


def test_damage_of_a_deleted_document_is_named(filled: Path) -> None:
    with Store.open(filled) as store:
        store.delete(["d1"])
    report = report_of(filled, "UPDATE passages SET spans = x'00'")
    assert report.damage == ("row 2: its passages are not what was written",)


def test_a_table_that_is_gone_is_damage(filled: Path) -> None:
    report = report_of(filled, "DROP TABLE embedding")
    assert "embeddings: cannot be read to the end (no such table: embedding)" in report.damage
    assert report.embeddings == 0


def test_an_index_without_one_of_its_rows_is_damage(filled: Path) -> None:
    """What is looked up by it would not be found, though the row is whole."""
    sql = "SELECT sql FROM sqlite_master WHERE name = 'document_live'"
    with closing(sqlite3.connect(filled / "documents.db", isolation_level=None)) as connection:
        (whole,) = connection.execute(sql).fetchone()
        connection.execute("DROP INDEX document_live")
        connection.execute(f"{whole} AND row != 1")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'document_live'", (whole,))
    damage = report_of(filled).damage
    assert any("row 1 missing from index document_live" in found for found in damage), damage


def test_findings_are_bounded(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_DAMAGES", 2)
    report = report_of(filled, "UPDATE document SET text = 'x'")
    assert len(report.damage) == 2


def test_what_the_disk_cannot_read_is_noted() -> None:
    class Failing:
        def execute(self, *given: Any) -> Any:
            raise sqlite3.OperationalError("disk I/O error")

    assert not verify(Failing()).ok  # type: ignore[arg-type]

"""Verify a collection: each digest, the sum of all facts, the derived tables, SQLite's own structure.

SQLite's integrity check covers the structure of its trees, not their content, and misses almost every flipped
bit in a text or a vector. The digests name the damaged row; the set digest detects missing rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from dsearch.store import verdicts
from dsearch.store.records import VerifyReport
from dsearch.store.sqlite.digest import (
    DIGEST_BYTES,
    add_facts,
    document_digest,
    document_fact,
    embedding_digest,
    embedding_fact,
    judged_digest,
    judged_fact,
    passages_digest,
    passages_fact,
    record_fact,
    tombstone_fact,
)
from dsearch.store.sqlite.schema import CollectionMeta, StateRow, read_meta, read_state

_MOST_DAMAGES = 1000


class _Audit:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.damage: list[str] = []
        self.facts = 0
        self.documents: int = 0
        self.embeddings: int = 0

    def note(self, damage: str) -> None:
        """Record damage."""
        if len(self.damage) < _MOST_DAMAGES:
            self.damage.append(damage)

    def rows(self, query: str, what: str) -> Iterator[tuple[object, ...]]:
        """Yield the rows of a query up to the first unreadable page, which is recorded."""
        try:
            yield from self.connection.execute(query)
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            self.note(f"{what}: cannot be read to the end ({error})")


def verify(connection: sqlite3.Connection) -> VerifyReport:
    """Check a collection within one read transaction; damage is reported, not raised."""
    audit = _Audit(connection)
    state = _state(audit)
    for (finding,) in audit.rows("PRAGMA integrity_check(20)", "SQLite's structure"):
        if finding != "ok":
            audit.note(f"SQLite's structure: {finding}")
    _documents(audit)
    _embeddings(audit)
    _passages(audit)
    _judged(audit)
    _registry(audit)
    if state is not None:
        _totals(audit, state)
    return VerifyReport(
        sequence=0 if state is None else state.sequence,
        documents=audit.documents,
        embeddings=audit.embeddings,
        damage=tuple(audit.damage),
    )


def _state(audit: _Audit) -> StateRow | None:
    try:
        meta: CollectionMeta = read_meta(audit.connection)
        audit.facts += meta.fact
        return read_state(audit.connection)
    except Exception as error:  # any error of a damaged table is a finding
        audit.note(f"the collection's own record cannot be read ({error})")
        return None


def _documents(audit: _Audit) -> None:
    # As blobs: a flipped bit may invalidate UTF-8, which is a finding, not an exception.
    names = ("id", "title", "text", "metadata", "value")
    fields = ", ".join(f"CAST({name} AS BLOB)" for name in names)
    # ... or turn text into a blob of the same bytes, which readers reject.
    types = " AND ".join(f"typeof({name}) = 'text'" for name in names[:-1])
    types += " AND typeof(value) IN ('text', 'null')"
    query = f"SELECT row, written, deleted, digest, {types}, {fields} FROM document NOT INDEXED"
    for row, written, deleted, digest, typed, *parts in audit.rows(query, "documents"):
        id = parts[0]
        excerpt = id[:80].decode("utf-8", "replace") if isinstance(id, bytes) else "?"
        blobs = [part if isinstance(part, bytes) else b"" for part in parts]
        if not isinstance(digest, bytes) or len(digest) != DIGEST_BYTES:
            audit.note(f"row {row} (id {excerpt!r}): its digest is not what was written")
            continue
        if not typed or document_digest(*blobs) != digest:
            audit.note(f"row {row} (id {excerpt!r}): text or metadata are not what was written")
        if not (isinstance(row, int) and isinstance(written, int) and isinstance(deleted, int | None)):
            audit.note(f"row {row} (id {excerpt!r}): its operation numbers are not what was written")
            continue
        try:
            audit.facts += document_fact(row, written, digest)
            audit.facts += 0 if deleted is None else tombstone_fact(row, deleted)
        except Exception:  # struct.error: a number below zero
            audit.note(f"row {row} (id {excerpt!r}): its operation numbers are not what was written")
        audit.documents += deleted is None


def _embeddings(audit: _Audit) -> None:
    query = "SELECT row, written, digest, vector FROM embedding NOT INDEXED"
    for row, written, digest, vector in audit.rows(query, "embeddings"):
        audit.embeddings += 1
        if not isinstance(digest, bytes):
            audit.note(f"row {row}: the digest of its embedding is not what was written")
            continue
        if not isinstance(vector, bytes) or embedding_digest(vector) != digest:
            audit.note(f"row {row}: its embedding is not what was written")
        try:
            audit.facts += embedding_fact(int(str(row)), int(str(written)), digest)
        except Exception:
            audit.note(f"row {row}: its operation number is not what was written")


def _passages(audit: _Audit) -> None:
    # Format 1 has no such table; if it is missing in format 2, the sum of all facts differs.
    if not list(audit.rows("SELECT 1 FROM sqlite_master WHERE name = 'passages'", "tables")):
        return
    query = "SELECT row, written, digest, spans, vectors FROM passages NOT INDEXED"
    for row, written, digest, spans, vectors in audit.rows(query, "passages"):
        if not isinstance(digest, bytes):
            audit.note(f"row {row}: the digest of its passages is not what was written")
            continue
        whole = isinstance(spans, bytes) and isinstance(vectors, bytes)
        if not whole or passages_digest(bytes(spans), bytes(vectors)) != digest:  # type: ignore[arg-type]
            audit.note(f"row {row}: its passages are not what was written")
        try:
            audit.facts += passages_fact(int(str(row)), int(str(written)), digest)
        except Exception:
            audit.note(f"row {row}: the operation number of its passages is not what was written")
    orphans = (
        "SELECT count(*) FROM passages NOT INDEXED WHERE row NOT IN (SELECT row FROM embedding NOT INDEXED)"
    )
    for (count,) in audit.rows(orphans, "passages"):
        if count:
            audit.note(f"passages: {count} belong to no embedding")


def _judged(audit: _Audit) -> None:
    # Formats before 3 have no such table; if it is missing in format 3, the sum of all facts differs.
    if not list(audit.rows("SELECT 1 FROM sqlite_master WHERE name = 'judged'", "tables")):
        return
    names = ("text", "state", "grades", "source", "key")
    blobs = ", ".join(f"CAST({name} AS BLOB)" for name in names)
    # A flipped bit may turn one into the other, of the same bytes, which readers reject.
    types = " AND ".join(f"typeof({name}) = '{'blob' if name == 'state' else 'text'}'" for name in names)
    query = f"SELECT number, written, digest, {types}, {blobs} FROM judged NOT INDEXED"
    for number, written, digest, typed, *parts in audit.rows(query, "rows of the query memory"):
        named = f"row {number} of the query memory"
        if not isinstance(digest, bytes):
            audit.note(f"{named}: its digest is not what was written")
            continue
        if not typed or judged_digest([part if isinstance(part, bytes) else b"" for part in parts]) != digest:
            audit.note(f"{named}: it is not what was written")
        try:
            audit.facts += judged_fact(int(str(number)), int(str(written)), digest)
        except Exception:
            audit.note(f"{named}: its operation number is not what was written")


def _registry(audit: _Audit) -> None:
    tables = {
        "generation": "number, manifest_digest, rows, snapshot, record, written",
        "model": "number, parent, record, written",
        "live": "written, kind, number",
        "verdict": verdicts.COLUMNS,
    }
    # Formats before 4 have no verdicts; if they are missing in format 4, the sum of all facts differs.
    if not list(audit.rows("SELECT 1 FROM sqlite_master WHERE name = 'verdict'", "tables")):
        del tables["verdict"]
    for table, columns in tables.items():
        for fields in audit.rows(f"SELECT {columns} FROM {table}", f"table {table}"):
            try:
                audit.facts += record_fact(table.encode(), *fields)
            except (TypeError, ValueError):
                audit.note(f"table {table}: {fields[0]!r} is not what was written")


def _totals(audit: _Audit, state: StateRow) -> None:
    if add_facts(bytes(32), audit.facts) != state.digest:
        audit.note(
            "the collection as a whole: rows, deletions or operation numbers are not those acknowledged"
        )
    counters = {
        "live documents": (
            state.documents,
            "SELECT count(*) FROM document NOT INDEXED WHERE deleted IS NULL",
        ),
        "deleted rows": (
            state.tombstones,
            "SELECT count(*) FROM document NOT INDEXED WHERE deleted IS NOT NULL",
        ),
    }
    for what, (expected, query) in counters.items():
        for (count,) in audit.rows(query, what):
            if count != expected:
                audit.note(f"{what}: {count} found, {expected} recorded")
    wrong = """
        SELECT count(*) FROM (
            SELECT row FROM document NOT INDEXED
            WHERE deleted IS NULL AND row NOT IN (SELECT row FROM embedding NOT INDEXED)
            EXCEPT SELECT row FROM pending
        )
    """
    for (count,) in audit.rows(wrong, "pending rows"):
        if count:
            audit.note(f"live documents without an embedding that pending rows do not list: {count}")
    extra = "SELECT count(*) FROM pending WHERE row IN (SELECT row FROM embedding NOT INDEXED)"
    for (count,) in audit.rows(extra, "pending rows"):
        if count:
            audit.note(f"pending rows, listed though they have an embedding: {count}")
    orphans = (
        "SELECT count(*) FROM embedding NOT INDEXED WHERE row NOT IN (SELECT row FROM document NOT INDEXED)"
    )
    for (count,) in audit.rows(orphans, "embeddings"):
        if count:
            audit.note(f"embeddings: {count} belong to no document")

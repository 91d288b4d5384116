"""Tables of `documents.db`, formats 2 to 4.

- `meta`       format, name, encoder and dimension of the collection; written once.
- `state`      one row: the operation sequence and the set digest (digest.py), now and before the last commit,
               counters, and the last row number given out. Rows are numbered from 1 and no number is given
               twice.
- `document`   one row per document *version*. `written` and `deleted` are operation numbers; `deleted` is
               NULL while the version is live, and at most one version of an id is.
- `embedding`  apart from the text, so that reading all embeddings reads nothing else. `written` is the
               operation that made the row searchable, which may be later than the document's.
- `passages`   of a document longer than the encoder's window: where its passages are in the text, and their
               embeddings but for the first, which is its row of `embedding` (passages.py). Format 1 has no
               such table: its collections are read and written as they are, and cut no document.
- `judged`     rows of the query memory (judged.py); only from format 3 on, to which a collection is raised
               with the first of them.
- `verdict`    verdicts of the gate (verdicts.py); only in format 4, to which a collection is raised with the
               first of them.
- `pending`    live rows without an embedding, so that reading them does not scan the collection. Derived.
- `generation`, `model`  what was built; `live` is a log, and the newest entry of a kind is what is live: one
               committed row switches, and a rollback is one more row. An entry of kind `horizon` says up to
               which operation deletions were purged (registry.py).

Tables carry no foreign keys: `Store.verify` checks the relations together with the digests.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dsearch.errors import Command, CorruptData, UnsupportedFormat
from dsearch.store.sqlite.database import DatabaseFile, MarkedState, read_row
from dsearch.store.sqlite.digest import canonical_json, record_fact

FILE_NAME = "documents.db"
FORMAT_WITH_JUDGED = 3
FORMAT_WITH_VERDICTS = 4
FORMAT = 4  # the newest that is read
NEW_FORMAT = 2  # of a new collection
OLDEST_FORMAT = 1
APPLICATION_ID = 0x64736561  # "dsea": identifies the database, also to `file`

# 8,192 bytes hold five embeddings of 384 numbers; the default of 4,096 holds two and wastes a fifth.
PAGE_BYTES = 8192

PASSAGES = """
CREATE TABLE passages (
    row     INTEGER PRIMARY KEY,
    written INTEGER NOT NULL,
    digest  BLOB    NOT NULL,
    spans   BLOB    NOT NULL,
    vectors BLOB    NOT NULL
)"""

JUDGED = (
    """
CREATE TABLE judged (
    number  INTEGER PRIMARY KEY,
    text    TEXT    NOT NULL,
    state   BLOB    NOT NULL,
    grades  TEXT    NOT NULL,
    source  TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    digest  BLOB    NOT NULL,
    written INTEGER NOT NULL
)""",
    "CREATE INDEX judged_written ON judged (written)",
)

VERDICTS = (
    """
CREATE TABLE verdict (
    number    INTEGER PRIMARY KEY,
    kind      TEXT    NOT NULL,
    queries   TEXT    NOT NULL,
    alpha     REAL    NOT NULL,
    passed    INTEGER NOT NULL,
    version   TEXT,
    judged_at INTEGER NOT NULL,
    written   INTEGER NOT NULL
)""",
)

TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE state (
    one               INTEGER PRIMARY KEY CHECK (one = 1),
    sequence          INTEGER NOT NULL,
    digest            BLOB    NOT NULL,
    previous_sequence INTEGER NOT NULL,
    previous_digest   BLOB    NOT NULL,
    last_row          INTEGER NOT NULL,
    documents         INTEGER NOT NULL,
    tombstones        INTEGER NOT NULL
);

CREATE TABLE document (
    row      INTEGER PRIMARY KEY,
    id       TEXT    NOT NULL,
    title    TEXT    NOT NULL,
    text     TEXT    NOT NULL,
    metadata TEXT    NOT NULL,
    value    TEXT,
    digest   BLOB    NOT NULL,
    written  INTEGER NOT NULL,
    deleted  INTEGER
);
CREATE UNIQUE INDEX document_live ON document (id) WHERE deleted IS NULL;
CREATE INDEX document_deleted ON document (deleted) WHERE deleted IS NOT NULL;

CREATE TABLE embedding (
    row     INTEGER PRIMARY KEY,
    written INTEGER NOT NULL,
    digest  BLOB    NOT NULL,
    vector  BLOB    NOT NULL
);
CREATE INDEX embedding_written ON embedding (written);

{PASSAGES.strip()};

CREATE TABLE pending (row INTEGER PRIMARY KEY, length INTEGER NOT NULL);

CREATE TABLE generation (
    number          INTEGER PRIMARY KEY,
    manifest_digest TEXT    NOT NULL,
    rows            INTEGER NOT NULL,
    snapshot        INTEGER NOT NULL,
    record          TEXT    NOT NULL,
    written         INTEGER NOT NULL
);
CREATE TABLE model (
    number  INTEGER PRIMARY KEY,
    parent  INTEGER NOT NULL,
    record  TEXT    NOT NULL,
    written INTEGER NOT NULL
);
CREATE TABLE live (
    written INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    number  INTEGER NOT NULL,
    PRIMARY KEY (kind, written)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class CollectionMeta:
    """Identity of a collection; written at its creation and never changed.

    `passages` are the settings that cut long documents into passages; None if they are not cut.
    """

    name: str
    encoder: dict[str, Any]
    dimension: int
    passages: dict[str, Any] | None = None
    format: int = NEW_FORMAT

    @property
    def fact(self) -> int:
        """Its part of the set digest."""
        columns = [self.format, self.name, self.encoder, self.dimension]
        return record_fact(b"meta", *columns, *([] if self.format == 1 else [self.passages]))


@dataclass(frozen=True, slots=True)
class StateRow(MarkedState):
    """The row of table `state`, with its counters."""

    last_row: int
    documents: int
    tombstones: int

    def counters(self) -> dict[str, int]:
        """The further columns."""
        return {"last_row": self.last_row, "documents": self.documents, "tombstones": self.tombstones}


DOCUMENTS = DatabaseFile(
    FILE_NAME,
    "watermark",
    "writes",
    remedy="restore a backup, or give up what is missing",
    repair="restore a backup, or index again",
    refused=(
        "this write is not acknowledged and no more are taken. Searches go on. Check the disk and open the "
        "collection again"
    ),
    hint=Command("recover", ("COLLECTION",)),
    state=StateRow,
)


def create_tables(connection: sqlite3.Connection, meta: CollectionMeta, digest: bytes) -> None:
    """Create the tables in one transaction; `connection` is in autocommit mode."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in TABLES.split(";\n"):
        connection.execute(statement)
    connection.executemany(
        "INSERT INTO meta VALUES (?, ?)",
        [
            ("format", str(meta.format)),
            ("name", meta.name),
            ("encoder", canonical_json(meta.encoder)),
            ("dimension", str(meta.dimension)),
            ("passages", canonical_json(meta.passages)),
        ],
    )
    connection.execute("INSERT INTO state VALUES (1, 0, ?, 0, ?, 0, 0, 0)", (digest, digest))
    connection.execute("COMMIT")


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """True if the table is there: `passages` came with format 2, the later ones come with a first row."""
    query = "SELECT 1 FROM sqlite_master WHERE name = ?"
    return connection.execute(query, (name,)).fetchone() is not None


def need_table(
    connection: sqlite3.Connection, name: str, statements: Sequence[str], least_format: int
) -> int:
    """Make a table where there is none, and raise the format, so that older releases refuse the collection.

    Returns the change of the sum of all facts.
    """
    if has_table(connection, name):
        return 0
    before = read_meta(connection)
    for statement in (*statements, *(() if has_table(connection, "passages") else (PASSAGES,))):
        connection.execute(statement)
    raised = str(max(before.format, least_format))
    connection.execute("UPDATE meta SET value = ? WHERE key = 'format'", (raised,))
    connection.execute("INSERT OR IGNORE INTO meta VALUES ('passages', 'null')")
    return read_meta(connection).fact - before.fact


def read_meta(connection: sqlite3.Connection) -> CollectionMeta:
    """Read the collection's identity; raises UnsupportedFormat, KeyError, ValueError or sqlite3 errors."""
    stored: dict[str, object] = dict(connection.execute("SELECT key, value FROM meta"))
    fields = {key: value for key, value in stored.items() if isinstance(value, str)}
    if damaged := stored.keys() - fields.keys():  # a flipped bit may turn text into a blob, or into nothing
        raise ValueError(f"{min(damaged, key=str)} is no text")
    version = fields.get("format", "unknown")
    if not version.isascii() or not version.isdigit() or not OLDEST_FORMAT <= int(version) <= FORMAT:
        raise UnsupportedFormat(
            f"the collection has store format {version}; this release reads {OLDEST_FORMAT} to {FORMAT}: "
            "use the release that wrote it to export it, or a newer dsearch"
        )
    return CollectionMeta(
        fields["name"],
        json.loads(fields["encoder"]),
        int(fields["dimension"]),
        None if version == "1" else json.loads(fields["passages"]),
        int(version),
    )


def read_state(connection: sqlite3.Connection) -> StateRow:
    """Read the row of table `state`; raises CorruptData where it is none."""
    state = read_row(connection, StateRow)
    if state is None:
        raise CorruptData(
            "documents.db is damaged: the row of its table `state` is not what was written; "
            "restore a backup, or index again"
        )
    return state

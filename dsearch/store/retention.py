"""What may go: generations that nobody needs any more, and for good, the content of deleted documents.

A deletion leaves a tombstone, because a generation built before it still has the row, and `changes_since`
has to say that it went. Once no registered generation is older than the deletion, the row, its text, its
embedding and its tombstone can be removed. The log of what is live then gets an entry of kind `horizon`:
deletions up to that operation are forgotten, and no generation from before it can be served again.
"""

from __future__ import annotations

import sqlite3

from ..errors import Conflict, InvalidRequest
from . import passages, registry
from .digest import canonical_json, document_fact, embedding_fact, record_fact, tombstone_fact
from .operation import Operation


def retirable(connection: sqlite3.Connection, keep: int) -> list[int]:
    """Registered generations, ascending, without the live one and the `keep` newest."""
    if keep < 1:
        raise InvalidRequest(f"keep={keep}; use 1 or more: the live generation always stays")
    numbers = [generation.number for generation in registry.generations(connection)]
    live = registry.live(connection, "generation")
    return [number for number in numbers[:-keep] if number != live]


def retire_generation(operation: Operation, number: int) -> int:
    """Strike a generation off the register. Returns the operation's number."""
    retired = registry.generation(operation.connection, number)
    if registry.live(operation.connection, "generation") == number:
        raise Conflict(f"generation {number} is live; publish another one first")
    fields = (number, retired.manifest_digest, retired.rows, retired.snapshot, canonical_json(retired.record))
    operation.connection.execute("DELETE FROM generation WHERE number = ?", (number,))
    operation.take_fact(record_fact(b"generation", *fields, retired.written))
    return operation.sequence


def purge(operation: Operation) -> int:
    """Remove the rows that were deleted before every registered generation; returns how many."""
    connection = operation.connection
    oldest = min((g.snapshot for g in registry.generations(connection)), default=operation.sequence)
    dead = connection.execute(
        "SELECT row, written, deleted, digest FROM document WHERE deleted <= ? ORDER BY deleted", (oldest,)
    ).fetchall()
    for row, written, deleted, digest in dead:
        operation.take_fact(document_fact(row, written, digest) + tombstone_fact(row, deleted))
        for at, of in connection.execute("SELECT written, digest FROM embedding WHERE row = ?", (row,)):
            operation.take_fact(embedding_fact(row, at, of))
    passages.remove(operation, [row for row, *_ in dead])
    rows = [(row,) for row, *_ in dead]
    connection.executemany("DELETE FROM embedding WHERE row = ?", rows)
    connection.executemany("DELETE FROM document WHERE row = ?", rows)
    operation.tombstones -= len(dead)
    if dead:
        registry.make_live(operation, "horizon", dead[-1][2])
    return len(dead)

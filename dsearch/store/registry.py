"""Registry of generations and models, and which of them are live.

Files come first (written, synced, their folder synced), then one committed row makes them live. `live` is a
log: the newest entry of a kind is the live one, so a switch is an insertion, and so is a rollback.

Earlier releases trained models that answered predictions and no searches. They stay registered and never
become live (`predicts_only`). Entries that name one are passed over, and so are all of kind "predict model",
by which such releases kept the live model for predictions.

Retention removes generations that are no longer needed; a purge removes the content of deleted documents.

A deletion leaves a tombstone, because a generation built before it still has the row, and `changes_since`
has to report its removal. Once no registered generation is older than the deletion, the row, its text, its
embedding and its tombstone can be removed. The log then gets an entry of kind `horizon`: deletions up to that
operation are forgotten, and no generation from before it can be served again.
"""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any, Literal

from dsearch.errors import Conflict, CorruptData, InvalidRequest, ModelNotFound, NotFound
from dsearch.store import passages
from dsearch.store.records import GenerationRecord, ModelRecord
from dsearch.store.sqlite.digest import (
    canonical_json,
    document_fact,
    embedding_fact,
    record_fact,
    tombstone_fact,
)
from dsearch.store.sqlite.journal import Operation

# "horizon": `purge`; "deleted model": `delete_model`; "judged": judged.py.
Kind = Literal["generation", "model", "horizon", "deleted model", "judged"]
UNTRAINED = "v0"

_SHA256 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"v(0|[1-9][0-9]{0,8})", re.ASCII)


def add_generation(operation: Operation, generation: GenerationRecord) -> int:
    """Register a generation with complete files; not live yet. Returns the operation's number."""
    if generation.number < 1:
        raise InvalidRequest(f"generation {generation.number}; numbers start at 1")
    if not _SHA256.fullmatch(generation.manifest_digest):
        raise InvalidRequest(
            f"manifest digest {generation.manifest_digest[:80]!r}; give the SHA-256 as 64 hex digits"
        )
    purged = live(operation.connection, "horizon") or 0
    if generation.snapshot < purged:
        raise Conflict(
            f"generation {generation.number} is as of operation {generation.snapshot}, but deletions up to "
            f"operation {purged} were purged meanwhile; build it again"
        )
    record = _record_json(generation.record)
    fields = (generation.number, generation.manifest_digest, generation.rows, generation.snapshot, record)
    try:
        operation.connection.execute(
            "INSERT INTO generation VALUES (?, ?, ?, ?, ?, ?)", (*fields, operation.sequence)
        )
    except sqlite3.IntegrityError:
        raise Conflict(
            f"generation {generation.number} is registered already; take the next number"
        ) from None
    operation.add_fact(record_fact(b"generation", *fields, operation.sequence))
    return operation.sequence


def add_model(operation: Operation, version: str, parent: str, record: dict[str, Any]) -> int:
    """Register a model with complete files; not live yet. Returns the operation's number."""
    number = version_number(version)
    if number == 0:
        raise InvalidRequest(
            f"{UNTRAINED} is the untrained model and is always there; trained ones start at v1"
        )
    model(operation.connection, parent)  # raises ModelNotFound
    fields = (number, version_number(parent), _record_json(record))
    try:
        operation.connection.execute("INSERT INTO model VALUES (?, ?, ?, ?)", (*fields, operation.sequence))
    except sqlite3.IntegrityError:
        raise Conflict(f"model {version} is registered already; take the next version") from None
    operation.add_fact(record_fact(b"model", *fields, operation.sequence))
    return operation.sequence


def make_live(operation: Operation, kind: Kind, number: int) -> int:
    """Make a registered generation or model live, unless it is. Returns the operation's number."""
    if live(operation.connection, kind) == number:
        return operation.reached
    operation.connection.execute("INSERT INTO live VALUES (?, ?, ?)", (operation.sequence, kind, number))
    operation.add_fact(record_fact(b"live", operation.sequence, kind, number))
    return operation.sequence


def live(connection: sqlite3.Connection, kind: Kind) -> int | None:
    """Return the number of the live entry; None without any."""
    return next(iter(live_history(connection, kind)), None)


def live_history(connection: sqlite3.Connection, kind: Kind) -> list[int]:
    """Return all numbers that were live, newest first; the first is live now."""
    records = connection.execute("SELECT number FROM live WHERE kind = ? ORDER BY written DESC", (kind,))
    return [number for (number,) in records]


def generations(connection: sqlite3.Connection) -> list[GenerationRecord]:
    """All registered generations, by number."""
    records = connection.execute(
        "SELECT number, manifest_digest, rows, snapshot, record, written FROM generation ORDER BY number"
    )
    return [
        GenerationRecord(number, digest, rows, snapshot, parsed_record(record), written)
        for number, digest, rows, snapshot, record, written in records
    ]


def generation(connection: sqlite3.Connection, number: int) -> GenerationRecord:
    """One registered generation; raises NotFound."""
    for record in generations(connection):
        if record.number == number:
            return record
    raise NotFound(f"generation {number} is not registered; build it first")


def models(connection: sqlite3.Connection) -> list[ModelRecord]:
    """All trained models, by version."""
    records = connection.execute("SELECT number, parent, record, written FROM model ORDER BY number")
    return [
        ModelRecord(f"v{number}", f"v{parent}", parsed_record(record), written)
        for number, parent, record, written in records
    ]


def model(connection: sqlite3.Connection, version: str) -> ModelRecord:
    """One model; v0 is always there and has no record. Raises ModelNotFound."""
    if version == UNTRAINED:
        return ModelRecord(UNTRAINED, None)
    trained = models(connection)
    for candidate in trained:
        if candidate.version == version:
            return candidate
    versions = ", ".join([UNTRAINED, *(candidate.version for candidate in trained)])
    raise ModelNotFound(f"no model {version[:80]!r}; this collection has {versions}")


def predicts_only(connection: sqlite3.Connection, number: int, cache: dict[int, bool] | None = None) -> bool:
    """True for a model of an earlier release that answered predictions and no searches.

    It learned to predict a field, or was made from a model that did. Its record has the purpose "predict", or
    in still earlier releases no purpose and the objective "value".

    Args:
        connection: of the documents.
        number: of the model; False for one that is not registered.
        cache: results of earlier calls, which never change; extended.
    """
    cache = {} if cache is None else cache
    line: list[int] = []
    found = False
    while number > 0:
        if number in cache:
            found = cache[number]
            break
        row = connection.execute("SELECT parent, record FROM model WHERE number = ?", (number,)).fetchone()
        if row is None:
            break
        line.append(number)
        record = parsed_record(row[1])
        purpose = record.get("purpose")
        if purpose == "predict" or (purpose is None and record.get("objective") == "value"):
            found = True
        if found or purpose == "search":
            break
        number = row[0]
    cache.update(dict.fromkeys(line, found))
    return found


def model_history(connection: sqlite3.Connection, cache: dict[int, bool] | None = None) -> list[int]:
    """Return the numbers of the models that were live, newest first; see `predicts_only`."""
    history = live_history(connection, "model")
    return [number for number in history if not predicts_only(connection, number, cache)]


def live_model(connection: sqlite3.Connection, cache: dict[int, bool] | None = None) -> int:
    """Return the number of the live model, 0 before any promotion.

    Deleted models are passed over, since one that answered predictions may be the latest entry.
    """
    for number in model_history(connection, cache):
        found = connection.execute("SELECT 1 FROM model WHERE number = ?", (number,)).fetchone()
        if number == 0 or found is not None:
            return number
    return 0


def delete_model(operation: Operation, version: str) -> int:
    """Unregister a model; its number is not reused. Returns the operation's number.

    Models that were made from it get its parent. Raises ModelNotFound, InvalidRequest (v0), Conflict (live).
    """
    connection, number = operation.connection, version_number(version)
    if number == 0:
        raise InvalidRequest(f"{UNTRAINED} is the untrained model and is always there; delete a trained one")
    doomed = model(connection, version)
    if live_model(connection) == number:
        raise Conflict(f"model {version} answers now; promote another one first, or roll back")
    predicting = predicts_only(connection, number)
    for child in models(connection):
        if child.parent == version:  # what it inherited stays known by its record
            record = {**child.record, "purpose": "predict"} if predicting else child.record
            rewrite_model(operation, child, doomed.parent or UNTRAINED, record)
    fields = (number, version_number(doomed.parent or UNTRAINED), canonical_json(doomed.record))
    connection.execute("DELETE FROM model WHERE number = ?", (number,))
    operation.take_fact(record_fact(b"model", *fields, doomed.written))
    return make_live(operation, "deleted model", number)


def rewrite_model(operation: Operation, before: ModelRecord, parent: str, record: dict[str, Any]) -> int:
    """Give a registered model another parent or record. Returns the operation's number."""
    number, old_parent = version_number(before.version), version_number(before.parent or UNTRAINED)
    fields = (version_number(parent), _record_json(record))
    operation.connection.execute(
        "UPDATE model SET parent = ?, record = ? WHERE number = ?", (*fields, number)
    )
    operation.take_fact(
        record_fact(b"model", number, old_parent, canonical_json(before.record), before.written)
    )
    operation.add_fact(record_fact(b"model", number, *fields, before.written))
    return operation.reached


def next_number(connection: sqlite3.Connection, kind: Kind, folder: Path) -> int:
    """Return an unused number; folders count too, since a killed build leaves one."""
    (highest,) = connection.execute(f"SELECT coalesce(max(number), 0) FROM {kind}").fetchone()
    highest = max([highest, *live_history(connection, kind)])  # retired ones too
    if kind == "model":
        highest = max([highest, *live_history(connection, "deleted model")])
    parent = folder / f"{kind}s"
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    numbers = [
        int(name) for name in (name.removeprefix("v") for name in names) if re.fullmatch("[0-9]{1,9}", name)
    ]
    return max([highest, *numbers]) + 1


def version_number(version: str) -> int:
    """Return 3 for "v3"; raises InvalidRequest."""
    match = _VERSION.fullmatch(version)
    if match is None:
        raise InvalidRequest(f"model version {version[:80]!r}; versions are v0, v1, v2 and so on")
    return int(match[1])


def parsed_record(stored: object) -> dict[str, Any]:
    """Parse a stored record; a flipped bit may invalidate it."""
    try:
        return json.loads(str(stored))
    except ValueError as error:
        raise CorruptData(
            f"documents.db is damaged: the register holds {str(stored)[:80]} ({error}); restore a backup"
        ) from None


def _record_json(record: dict[str, Any]) -> str:
    try:
        return canonical_json(record)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"a record that is not JSON ({error}); use finite numbers, strings, lists, objects"
        ) from None


def retirable(connection: sqlite3.Connection, keep: int) -> list[int]:
    """Return registered generations, ascending, except the live one and the `keep` newest."""
    if keep < 1:
        raise InvalidRequest(f"keep={keep}; use 1 or more: the live generation always stays")
    numbers = [generation.number for generation in generations(connection)]
    answering = live(connection, "generation")
    return [number for number in numbers[:-keep] if number != answering]


def retire_generation(operation: Operation, number: int) -> int:
    """Unregister a generation. Returns the operation's number."""
    retired = generation(operation.connection, number)
    if live(operation.connection, "generation") == number:
        raise Conflict(f"generation {number} is live; publish another one first")
    fields = (number, retired.manifest_digest, retired.rows, retired.snapshot, canonical_json(retired.record))
    operation.connection.execute("DELETE FROM generation WHERE number = ?", (number,))
    operation.take_fact(record_fact(b"generation", *fields, retired.written))
    return operation.sequence


def purge(operation: Operation) -> int:
    """Remove the rows that were deleted before every registered generation; return their number."""
    connection = operation.connection
    oldest = min((g.snapshot for g in generations(connection)), default=operation.sequence)
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
    operation.counters["tombstones"] -= len(dead)
    if dead:
        make_live(operation, "horizon", dead[-1][2])
    return len(dead)

"""Purposes of versions: one answers searches, one answers predictions.

A version that learned to predict a field, and every version that was made from one, answers no search: its
record says so (`purpose`), or in records of earlier releases the objective "value". Each purpose has a log of
its own in the table `live`, of kind "model" for searches and "predict model" for predictions. Until an entry
names a version for predictions, and after FOLLOW, the version that answers searches answers them too.

Earlier releases had one log for both. A version for predictions in it answered predictions until the next
entry, and never counts for searches here. `make_current` writes that state into the log of predictions before
it adds to the log of searches, since from then on the next entry is about searches alone.
"""

from __future__ import annotations

import sqlite3

from dsearch.errors import Conflict, InvalidRequest
from dsearch.store.documents import registry
from dsearch.store.records import AS_SEARCH, ModelRecord
from dsearch.store.sqlite.digest import canonical_json, record_fact
from dsearch.store.sqlite.journal import Operation
from dsearch.types import PURPOSES, Purpose

FOLLOW = -1  # in the log of predictions: what answers searches
_KINDS: dict[Purpose, registry.Kind] = {"search": "model", "predict": "predict model"}


def purpose_of(
    connection: sqlite3.Connection, number: int, cache: dict[int, Purpose] | None = None
) -> Purpose:
    """Return the purpose of a version: its own, else that of the version that it was made from.

    Args:
        connection: of the documents.
        number: of the version; one that was deleted counts as one for searches.
        cache: purposes of earlier calls, which never change; extended.
    """
    cache = {} if cache is None else cache
    line: list[int] = []
    purpose: Purpose = "search"
    while number > 0:
        if number in cache:
            purpose = cache[number]
            break
        line.append(number)
        row = connection.execute("SELECT parent, record FROM model WHERE number = ?", (number,)).fetchone()
        if row is None:
            return purpose  # not registered, or not yet
        own = own_purpose(registry.parsed_record(row[1]))
        if own is not None:
            purpose = own
            break
        number = row[0]
    cache.update(dict.fromkeys(line, purpose))
    return purpose


def checked_purpose(purpose: object) -> Purpose:
    """Return a purpose.

    Raises:
        InvalidRequest: there is no such purpose.
    """
    for allowed in PURPOSES:
        if purpose == allowed:
            return allowed
    raise InvalidRequest(f"purpose={purpose!r}; use one of {', '.join(PURPOSES)}")


def own_purpose(record: dict[str, object]) -> Purpose | None:
    """Return the purpose that a record states; None if it states none."""
    for purpose in PURPOSES:
        if record.get("purpose") == purpose:
            return purpose
    return "predict" if record.get("objective") == "value" else None


def histories(
    connection: sqlite3.Connection, cache: dict[int, Purpose] | None = None
) -> dict[Purpose, list[int]]:
    """Return the versions that answered for each purpose, the latest last; FOLLOW among predictions."""
    return _read(connection, cache)[0]


def make_current(operation: Operation, purpose: Purpose, version: str) -> int:
    """Let a version answer for a purpose; returns the operation's number.

    Args:
        operation: of the write.
        purpose: search or predict.
        version: a registered one, v0, or AS_SEARCH for predictions.
    """
    connection, purpose = operation.connection, checked_purpose(purpose)
    history, follows_log = _read(connection)
    number = FOLLOW if version == AS_SEARCH else registry.version_number(version)
    latest = history[purpose][-1:] or ([FOLLOW] if purpose == "predict" else [])
    if latest == [number]:
        return operation.reached
    if purpose == "search" and follows_log:
        registry.add_live(operation, _KINDS["predict"], history["predict"][-1])
    return registry.add_live(operation, _KINDS[purpose], number)


def delete_model(operation: Operation, version: str) -> int:
    """Unregister a model; its number is not reused. Returns the operation's number.

    Models that were made from it get its parent, and keep their purpose in their record.
    """
    connection, number = operation.connection, registry.version_number(version)
    if number == 0:
        raise InvalidRequest(
            f"{registry.UNTRAINED} is the untrained model and is always there; delete a trained one"
        )
    gone = registry.model(connection, version)
    for purpose, history in histories(connection).items():
        if (history or [0])[-1] == number:
            kind = "answers now" if purpose == "search" else "answers predictions now"
            raise Conflict(f"model {version} {kind}; promote another one first, or roll back")
    for child in registry.models(connection):
        if child.parent == version:
            _hand_over(operation, child, gone.parent or registry.UNTRAINED)
    fields = (number, registry.version_number(gone.parent or registry.UNTRAINED), canonical_json(gone.record))
    connection.execute("DELETE FROM model WHERE number = ?", (number,))
    operation.take_fact(record_fact(b"model", *fields, gone.written))
    return registry.make_live(operation, "deleted model", number)


def _hand_over(operation: Operation, child: ModelRecord, parent: str) -> None:
    """Give a model another parent; it keeps its purpose in its record."""
    purpose = purpose_of(operation.connection, registry.version_number(child.version))
    registry.rewrite_model(operation, child, parent, {**child.record, "purpose": purpose})


def _read(
    connection: sqlite3.Connection, cache: dict[int, Purpose] | None = None
) -> tuple[dict[Purpose, list[int]], bool]:
    """The histories, and True if the log of searches says what answers predictions."""
    cache = {} if cache is None else cache
    logs: dict[Purpose, list[int]] = {"search": [], "predict": []}
    follows_log = False
    entries = connection.execute(
        "SELECT kind, number FROM live WHERE kind IN (?, ?) ORDER BY written, kind DESC",
        (_KINDS["search"], _KINDS["predict"]),
    )
    for kind, number in entries:
        if kind == _KINDS["predict"]:
            logs["predict"].append(number)
            follows_log = False
        elif purpose_of(connection, number, cache) == "predict":
            logs["predict"].append(number)
            follows_log = True
        else:
            logs["search"].append(number)
            if follows_log:
                logs["predict"].append(FOLLOW)
                follows_log = False
    return logs, follows_log

"""`RememberedRows`: the rows of the query memory that the store has, added to the memory of a version.

A version holds γ, τ and c, and the rows that it was trained with; rows that are inserted belong to the
sequence of operations (store/judged.py). A state of the collection has those up to its sequence, so
the last few states are kept, as they are of documents. Of one query and document the later grade counts: rows
from before a version was registered leave its own grades.

Versions with an encoder or documents of their own have no rows but those that they were trained with.
"""

from __future__ import annotations

import hashlib
import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from dsearch.attention.memory_rows import TRUSTED, MemoryRows
from dsearch.attention.retrieval.fixed_head import HeadFormulas
from dsearch.engine.models.files import SCOPE
from dsearch.engine.models.memory import index_keys
from dsearch.engine.state.snapshots import Snapshots
from dsearch.errors import InvalidRequest
from dsearch.results import RowsDropped
from dsearch.store import MemoryRow, ModelRecord, Store

Kind = TypeVar("Kind", bound=HeadFormulas)
MemoryKind = TypeVar("MemoryKind", bound=MemoryRows)

JUDGEMENTS = "judgements"  # source of rows that training takes up
RECENT = 8  # states that a stamp can still name
_HEADS = 16


@dataclass(frozen=True, slots=True)
class _RowsState:
    """The rows since operation `since`."""

    since: int
    rows: tuple[MemoryRow, ...]


class RememberedRows:
    """The rows of one collection; for many threads.

    Args:
        store: store of the rows.
        writing: lock of this process's writers.
        snapshots: of the documents, which show the sequence of operations.
    """

    def __init__(self, store: Store, writing: threading.Lock, snapshots: Snapshots):
        self._store, self._writing, self._snapshots = store, writing, snapshots
        self._lock = threading.Lock()
        self._states: list[_RowsState] = []
        self._heads: dict[tuple[str, int, type[HeadFormulas]], Any] = {}

    def add(self, queries: Sequence[MemoryRow]) -> int:
        """Write rows; durable, and part of every later search, on return.

        Returns the operation's number.
        """
        with self._writing:
            sequence = self._store.add_judged(queries)
            self.catch_up()
            self._snapshots.catch_up()
        return sequence

    def drop_after(self, sequence: int) -> RowsDropped:
        """Drop the rows that operations after `sequence` wrote; versions stay.

        Raises:
            InvalidRequest: there was no such operation.
        """
        with self._writing:
            last = self._store.sequence
            if not 0 <= sequence <= last:
                raise InvalidRequest(f"sequence={sequence}; use 0 to {last}, the last operation")
            reached, dropped = self._store.drop_judged(sequence)
            self.catch_up()
            self._snapshots.catch_up()
        return RowsDropped(dropped, len(self.rows()), reached)

    def catch_up(self) -> None:
        """Read what was written and dropped since."""
        with self._lock:
            self._read()

    def forget(self, version: str | None = None) -> None:
        """Forget the heads of a version; of all when None."""
        with self._lock:
            others = {key: head for key, head in self._heads.items() if version not in (None, key[0])}
            self._heads = others

    def rows(self, sequence: int | None = None) -> tuple[MemoryRow, ...]:
        """Return the rows as of an operation; the present ones when None."""
        with self._lock:
            return self._at(sequence).rows

    def remembering(self, version: str, head: Kind, sequence: int | None) -> Kind:
        """Return the head of a version with the rows as of an operation; `head` where it has none."""
        if head.memory is None:
            return head
        with self._lock:
            state = self._at(sequence)
            key = version, state.since, type(head)
            if key not in self._heads:
                record = self._store.model(version)
                own = "query_encoder" in record.record or "documents" in record.record
                extended = head if own else self._extended(version, head, self._fitted(record), state)
                while len(self._heads) >= _HEADS:
                    del self._heads[next(iter(self._heads))]
                self._heads[key] = extended
            return self._heads[key]

    def _fitted(self, record: ModelRecord) -> int:
        """The operation that registered the memory of a version, which may have it from another one."""
        while record.record.get("scope") == SCOPE and record.parent is not None:
            record = self._store.model(record.parent)
        return record.written

    def _extended(self, version: str, head: Kind, registered: int, state: _RowsState) -> Kind:
        """The head with the rows of a state, from those of the state before where they are the first."""
        same = [other for key, other in self._heads.items() if key[:2] == (version, state.since)]
        if same and state.rows:  # a head of the other kind has them: both share one memory
            memory: MemoryRows = head.memory
            return head.remembering(memory.sharing(same[0].memory)).settle()
        base, start = head, 0
        for earlier in self._states:
            shorter = self._heads.get((version, earlier.since, type(head)))
            count = len(earlier.rows)
            if shorter is not None and count > start and _begins(state, earlier):
                base, start = shorter, count
        memory: MemoryRows = base.memory
        for replaces in (False, True):
            more = [row for row in state.rows[start:] if (row.written > registered) == replaces]
            rows = memory_of_rows(self._store, more, type(memory))
            if rows is not None:
                memory = memory.extended(rows, replace=replaces)
        if memory is base.memory:
            return base
        longer = head.remembering(memory).settle()
        in_index = 0 if memory.index is None else len(memory.index)
        return index_keys(longer) if len(memory) > 2 * in_index else longer

    def _at(self, sequence: int | None) -> _RowsState:
        if not self._states:
            self._read()
        for state in reversed(self._states):
            if sequence is None or state.since <= sequence:
                return state
        return self._states[0]

    def _read(self) -> None:
        changed, dropped = self._store.judged_state()
        last = self._states[-1] if self._states else None
        if last is not None and last.since == changed:
            return
        if last is None or dropped > last.since:
            rows = tuple(self._store.judged())
        else:
            rows = (*last.rows, *self._store.judged(last.since))
        self._states = [*self._states, _RowsState(changed, rows)][-RECENT:]
        sinces = {state.since for state in self._states}
        self._heads = {key: head for key, head in self._heads.items() if key[1] in sinces}


def memory_of_rows(store: Store, rows: list[MemoryRow], kind: type[MemoryKind]) -> MemoryKind | None:
    """Return rows as a memory of this class; None if no document that they judge is left.

    A document that was purged has no embedding any more, and its grades do not count.
    """
    if not rows:
        return None
    documents = sorted({document for row in rows for document in row.grades})
    left, embeddings = store.embeddings_left(np.array(documents, np.int64))
    place: dict[int, int] = {int(document): at for at, document in enumerate(left.tolist())}
    pairs: list[tuple[int, int, float]] = []
    usable: list[MemoryRow] = []
    for row in rows:
        grades = [(place[document], grade) for document, grade in row.grades.items() if document in place]
        if any(grade > 0 for _, grade in grades):
            pairs += [(len(usable), at, grade) for at, grade in grades]
            usable.append(row)
    if not usable:
        return None
    columns: Any = zip(*pairs, strict=True)
    of_query, of_document, numbers = (np.array(column) for column in columns)
    return kind(
        np.stack([row.state for row in usable]),
        embeddings,
        left,
        of_query,
        of_document,
        numbers.astype(np.float32),
        texts=[row.text for row in usable],
        inserted=np.ones(len(pairs), bool),
        senders=np.array([sender_of(row) for row in usable], np.int64),
    )


def sender_of(row: MemoryRow) -> int:
    """Number of the key that sent a row, the same wherever it is computed; judgements are trusted."""
    if row.source == JUDGEMENTS:
        return TRUSTED
    return int.from_bytes(hashlib.sha256(row.key.encode()).digest()[:7])


def _begins(state: _RowsState, earlier: _RowsState) -> bool:
    """True if the rows of an earlier state are the first ones of this state."""
    count = len(earlier.rows)
    return count <= len(state.rows) and all(map(operator.is_, earlier.rows, state.rows))

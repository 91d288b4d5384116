"""Rows of the query memory by state, and the heads that have them."""

from __future__ import annotations

import hashlib
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.fakes import HashingEncoder
from support.guarded import guarded

from dsearch.attention.memory_rows import TRUSTED
from dsearch.attention.retrieval.fixed_head import FixedHead
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.state import remembered
from dsearch.engine.state.remembered import JUDGEMENTS, RememberedRows, memory_of_rows, sender_of
from dsearch.errors import InvalidRequest
from dsearch.store import MemoryRow

checked = guarded(RememberedRows, "_states", "_heads")


DIM = 4


def row(
    number: int, *, source: Any = JUDGEMENTS, key: str = "", grades: dict[int, float] | None = None
) -> MemoryRow:
    state = np.eye(DIM, dtype=np.float32)[number % DIM]
    return MemoryRow(f"query {number}", state, grades or {number: 1.0}, source, key, number)


class Log:
    """A store of rows in memory, with what `RememberedRows` asks of one."""

    def __init__(self) -> None:
        self.sequence, self.dropped, self.kept = 10, 0, list[MemoryRow]()
        self.record: dict[str, Any] = {}
        self.reads = 0

    def add_judged(self, rows: list[MemoryRow]) -> int:
        self.sequence += 1
        self.kept += [MemoryRow(r.text, r.state, r.grades, r.source, r.key, self.sequence) for r in rows]
        return self.sequence

    def drop_judged(self, sequence: int) -> tuple[int, int]:
        left = [one for one in self.kept if one.written <= sequence]
        gone, self.kept = len(self.kept) - len(left), left
        if gone:
            self.sequence += 1
            self.dropped = self.sequence
        return self.sequence, gone

    def judged_state(self) -> tuple[int, int]:
        return max([self.dropped, *(one.written for one in self.kept)]), self.dropped

    def judged(self, after: int = 0) -> list[MemoryRow]:
        self.reads += 1
        return [one for one in self.kept if one.written > after]

    def model(self, version: str) -> Any:
        return SimpleNamespace(record=self.record, written=5)


class Live:
    def __init__(self) -> None:
        self.caught_up = 0

    def catch_up(self) -> None:
        self.caught_up += 1


def rows_of(log: Log) -> RememberedRows:
    return RememberedRows(log, threading.Lock(), Live())  # type: ignore[arg-type]


def texts(rows: tuple[MemoryRow, ...]) -> list[str]:
    return [one.text for one in rows]


def test_rows_of_earlier_operations_can_still_be_asked_for() -> None:
    log = Log()
    rows = rows_of(log)
    assert rows.rows() == ()
    first = rows.add([row(1)])
    second = rows.add([row(2), row(3)])
    assert texts(rows.rows()) == ["query 1", "query 2", "query 3"]
    assert texts(rows.rows(second)) == texts(rows.rows(second + 5)) == ["query 1", "query 2", "query 3"]
    assert texts(rows.rows(first)) == ["query 1"]
    assert rows.rows(first - 1) == ()
    assert rows.rows(0) == ()


def test_only_the_last_states_are_kept_and_the_oldest_stands_for_those_before() -> None:
    rows = rows_of(Log())
    rows.rows()
    written = [rows.add([row(number)]) for number in range(remembered.RECENT + 2)]
    assert remembered.RECENT == 8
    for kept in range(2, len(written)):
        assert len(rows.rows(written[kept])) == kept + 1
    assert len(rows.rows(written[1])) == len(rows.rows(0)) == 3


def test_rows_that_were_dropped_are_gone_and_told() -> None:
    log = Log()
    rows = rows_of(log)
    first = rows.add([row(1)])
    rows.add([row(2), row(3)])
    told = rows.drop_after(first)
    assert (told.dropped, told.remaining, told.sequence) == (2, 1, log.sequence)
    assert texts(rows.rows()) == ["query 1"]
    again = rows.drop_after(log.sequence)
    assert (again.dropped, again.remaining) == (0, 1)
    assert rows.drop_after(0).remaining == 0


@pytest.mark.parametrize("sequence", [-1, 12])
def test_dropping_after_an_operation_that_is_none_is_refused(sequence: int) -> None:
    log = Log()
    rows = rows_of(log)
    rows.add([row(1)])
    with pytest.raises(InvalidRequest, match=rf"sequence={sequence}; use 0 to 11, the last operation"):
        rows.drop_after(sequence)
    assert len(rows.rows()) == 1


def test_only_new_rows_are_read_and_none_where_nothing_changed() -> None:
    log = Log()
    rows = rows_of(log)
    first = rows.rows() or rows.add([row(1)])
    assert first
    before = rows.rows()
    log.add_judged([row(2)])
    rows.catch_up()
    assert rows.rows()[0] is before[0]
    reads = log.reads
    rows.catch_up()
    rows.rows()
    assert log.reads == reads


@pytest.mark.parametrize("write", ["add", "drop_after"])
def test_every_write_holds_the_lock_and_brings_the_live_state_up(write: str) -> None:
    log, lock, live = Log(), threading.Lock(), Live()
    rows = RememberedRows(log, lock, live)  # type: ignore[arg-type]
    calls = {
        "add": lambda: rows.add([row(1)]),
        "drop_after": lambda: rows.drop_after(10),
    }
    lock.acquire()
    thread = threading.Thread(target=calls[write])
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    assert live.caught_up == 0
    lock.release()
    thread.join()
    assert live.caught_up == 1


class Plain:
    """A head with a memory that cannot be extended."""

    def __init__(self, memory: object = None):
        self.memory = memory


@pytest.mark.parametrize("record", [{"query_encoder": {}}, {"documents": {}}])
def test_a_version_with_an_encoder_of_its_own_takes_up_no_rows(record: dict[str, Any]) -> None:
    """Rows hold states by the collection's encoder, which are not comparable."""
    log = Log()
    log.record = record
    rows = rows_of(log)
    rows.add([row(1)])
    head: Any = Plain(memory=object())
    assert rows.remembering("v1", head, None) is head


def test_a_head_without_a_memory_stays() -> None:
    log = Log()
    rows = rows_of(log)
    rows.add([row(1)])
    head: Any = Plain()
    assert rows.remembering("v1", head, None) is head


class Embedded:
    """A store in which the documents of even rows are left."""

    def embeddings_left(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        left = rows[rows % 2 == 0]
        return left, np.stack([np.full(DIM, at, np.float32) for at in left])


def test_a_memory_of_rows_leaves_out_documents_that_are_gone_and_rows_without_a_positive() -> None:
    rows = [
        row(0, grades={2: 4.0, 3: 1.0, 6: 2.0}),
        row(1, grades={3: 1.0}),  # its document is gone
        row(2, grades={4: 0.0, 5: 1.0}),  # what is left has no positive grade
        row(3, grades={4: 1.0}, source="clicks", key="site"),
    ]
    memory = memory_of_rows(Embedded(), rows, QueryMemory)  # type: ignore[arg-type]
    assert memory is not None
    assert memory.texts == ["query 0", "query 3"]
    grades = [
        (int(query), int(memory.rows[document]), float(grade))
        for query, document, grade in zip(memory.of_query, memory.of_document, memory.grades, strict=True)
    ]
    assert grades == [(0, 2, 1.0), (0, 6, 0.5), (1, 4, 1.0)]
    assert memory.senders.tolist() == [TRUSTED, sender_of(rows[3])]


def test_without_a_usable_row_there_is_no_memory() -> None:
    assert memory_of_rows(Embedded(), [], QueryMemory) is None  # type: ignore[arg-type]
    assert memory_of_rows(Embedded(), [row(2, grades={4: 0.0})], QueryMemory) is None  # type: ignore[arg-type]


def test_senders_are_told_apart_by_their_keys_and_judgements_are_trusted() -> None:
    assert sender_of(row(1, key="site")) == TRUSTED
    of_key = sender_of(row(1, source="clicks", key="site"))
    assert of_key == int.from_bytes(hashlib.sha256(b"site").digest()[:7])
    assert sender_of(row(2, source="outcomes", key="site")) == of_key
    assert sender_of(row(1, source="clicks", key="other")) != of_key
    assert of_key != TRUSTED


def test_a_head_is_of_its_version_its_state_and_its_kind(collection: Collection) -> None:
    """Whatever was asked for before: a memory of another version or operation answers otherwise."""
    versions = [collection.add_model(with_memory(text), {}) for text in ("one", "two")]
    at = int(collection.store.rows()[0])
    assert collection.remembered.rows() == ()
    added = [collection.remembered.add([row_of_collection(text, at)]) for text in ("first", "second")]
    inserted = {added[0] - 1: [], added[0]: ["first"], added[1]: ["first", "second"]}
    wanted = [
        (version, sequence, kind)
        for version in versions
        for sequence in inserted
        for kind in (collection.head, collection.ranking_head)
    ]
    for order in (wanted, wanted[::-1]):
        collection.remembered.forget()
        for version, sequence, kind in order:
            head = kind(version, sequence)
            assert head.memory.texts == [{"v1": "one", "v2": "two"}[version], *inserted[sequence]]
            assert isinstance(head, FixedHead if kind == collection.ranking_head else Head)


def test_a_row_that_was_dropped_answers_no_more_in_a_head_that_grew(collection: Collection) -> None:
    """As many rows as before are not the same rows."""
    version = collection.add_model(with_memory("one"), {})
    at = int(collection.store.rows()[0])
    first = collection.remembered.add([row_of_collection("first", at)])
    collection.remembered.add([row_of_collection("second", at)])
    assert collection.head(version).memory.texts == ["one", "first", "second"]
    collection.remembered.drop_after(first)
    collection.remembered.add([row_of_collection("third", at)])
    for head in (collection.head, collection.ranking_head):
        assert head(version).memory.texts == ["one", "first", "third"]


def test_the_heads_that_were_asked_for_first_make_room(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "_HEADS", 2)
    versions = [collection.add_model(with_memory(text), {}) for text in ("one", "two", "three")]
    heads = [collection.head(version) for version in versions]
    assert [key[0] for key in collection.remembered._heads] == versions[1:]
    assert collection.head(versions[2]) is heads[2]
    assert collection.head(versions[0]).memory.texts == ["one"]


def test_a_reader_takes_up_rows_that_another_process_wrote(
    engine: SearchEngine, collection: Collection
) -> None:
    with SearchEngine(engine.home.path, readonly=True, encoder=HashingEncoder) as reader:
        other = reader.collection("food")
        assert other.remembered.rows() == ()
        collection.remembered.add([row_of_collection("first", int(collection.store.rows()[0]))])
        other.catch_up()
        assert texts(other.remembered.rows()) == ["first"]


def with_memory(text: str) -> Head:
    head = Head(32)
    states, at = np.eye(1, 32, dtype=np.float32), np.zeros(1, np.int64)
    head.memory = QueryMemory(states, states, at + 1, at, at, np.ones(1), texts=[text])
    return head.eval()


def row_of_collection(text: str, document: int) -> MemoryRow:
    return MemoryRow(text, np.eye(1, 32, len(text), dtype=np.float32)[0], {document: 1.0}, JUDGEMENTS, "", 0)

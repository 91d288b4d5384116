"""The single writer: groups, what is no operation, and closing."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from support.guarded import guarded

from dsearch.errors import CorruptData, HomeLocked, Unavailable
from dsearch.store import Store
from dsearch.store.sqlite import journal as module
from dsearch.store.sqlite.journal import CommitGroup, Journal
from dsearch.store.sqlite.schema import read_state

checked = guarded(Journal, "_group", "_closed")
counted = guarded(Journal, "_waiting", lock="_counting", free=("operation",))


@pytest.fixture
def journal(store: Store) -> Journal:
    return store._journal


def opened(folder: Path) -> Journal:
    journal = Journal(folder)
    journal.open()
    return journal


def open_group(journal: Journal) -> CommitGroup:
    with journal._lock:
        return journal._join(False)


def test_closing_finishes_the_group_that_is_open(journal: Journal) -> None:
    group = open_group(journal)
    assert not group.wait(0.0)
    journal.close()
    assert group.wait(0.0)
    assert journal.failed
    journal.close()
    with pytest.raises(Unavailable, match="was closed; open it again"), journal.operation():
        pass


def test_an_open_group_takes_the_next_operation(journal: Journal) -> None:
    group = open_group(journal)
    assert open_group(journal) is group
    with journal.operation() as operation:
        operation.add_fact(5)
    assert group.wait(0.0)
    assert open_group(journal) is not group
    journal.close()


def test_a_rewriting_of_the_database_finishes_the_group_that_is_open(journal: Journal) -> None:
    before = journal.acknowledged
    group = open_group(journal)
    operation = group.operation()
    operation.add_fact(5)
    group.add(operation)
    assert journal.vacuum()
    assert group.wait(0.0)
    assert journal.acknowledged == before + 1
    assert not journal.failed
    journal.close()


def test_a_state_names_the_one_before_its_group(journal: Journal) -> None:
    """The one before its operation was never acknowledged by itself."""
    before = read_state(journal._connection)
    group = open_group(journal)
    for fact in (3, 4):
        operation = group.operation()
        operation.add_fact(fact)
        group.add(operation)
    with journal._lock:
        journal._finish(group)
    after = read_state(journal._connection)
    assert (after.sequence, after.previous_sequence) == (before.sequence + 2, before.sequence)
    assert after.previous_digest == before.digest
    journal.close()


def test_an_operation_that_changes_nothing_reaches_the_one_before_it_in_its_group(journal: Journal) -> None:
    group = open_group(journal)
    first = group.operation()
    first.add_fact(3)
    group.add(first)
    assert group.operation().reached == first.sequence == group.committed.sequence + 1
    with journal._lock:
        journal._finish(group)
    journal.close()


def test_an_opening_that_fails_releases_the_lock(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: object, **options: object) -> None:
        raise sqlite3.OperationalError("too many open files")

    store.close()
    with monkeypatch.context() as patch:
        patch.setattr(module, "connect", refused)
        with pytest.raises(CorruptData):
            Journal(folder).open()
    opened(folder).close()


def test_only_an_operation_with_facts_is_written(journal: Journal) -> None:
    before = journal.acknowledged
    with journal.operation() as operation:
        assert (operation.changed, operation.reached) == (False, before)
        operation.add_facts([])
    assert journal.acknowledged == before
    with journal.operation() as operation:
        operation.add_facts([3, 4])
        assert (operation.changed, operation.reached) == (True, before + 1)
    assert journal.acknowledged == before + 1


def test_facts_that_are_taken_back_leave_the_digest_and_are_an_operation(journal: Journal) -> None:
    digest = read_state(journal._connection).digest
    with journal.operation() as operation:
        operation.add_fact(7)
        operation.take_fact(7)
    state = read_state(journal._connection)
    assert state.digest == state.previous_digest == digest
    assert state.sequence == state.previous_sequence + 1


def test_an_operation_that_raises_is_undone(journal: Journal) -> None:
    def failing() -> None:
        with journal.operation() as operation:
            operation.connection.execute("DELETE FROM meta")
            operation.add_fact(1)
            raise KeyError("given up")

    before = journal.acknowledged
    with pytest.raises(KeyError):
        failing()
    assert journal.acknowledged == before
    assert journal._connection.execute("SELECT count(*) FROM meta").fetchone()[0] > 0
    with journal.operation() as operation:
        operation.add_fact(1)
    assert journal.acknowledged == before + 1


def test_a_second_writer_is_refused_and_a_closed_one_makes_room(store: Store, folder: Path) -> None:
    store.close()
    first = opened(folder)
    with pytest.raises(HomeLocked):
        opened(folder)
    first.close()
    opened(folder).close()


def test_an_emptied_log_is_said(journal: Journal) -> None:
    with journal.operation() as operation:
        operation.add_fact(1)
    assert journal.vacuum()
    journal.close()
    with pytest.raises(Unavailable):
        journal.vacuum()

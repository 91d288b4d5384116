"""What is kept of a task, and for how long; the order in which tasks run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsearch.service.tasks.store import TaskStore

REQUEST = {"queries": {"q1": "a question that is private"}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TaskStore]:
    made = TaskStore(tmp_path)
    yield made
    made.close()


def test_a_request_is_kept_until_its_task_ends(store: TaskStore, tmp_path: Path) -> None:
    first = store.add("evaluate", "papers", REQUEST)
    second = store.add("evaluate", "papers", REQUEST)
    assert store.next() is not None
    assert store.request(first) == store.request(second) == REQUEST
    store.end(first, "done", result={})
    assert (store.request(first), store.request(second)) == ({}, REQUEST)
    assert store.cancel_queued(second.id)
    assert store.request(second) == {}
    assert not store.cancel_queued(second.id)


def test_tasks_run_in_the_order_in_which_they_were_asked_for(store: TaskStore) -> None:
    added = [store.add("refresh", "papers", {}) for _ in range(4)]
    assert store.cancel_queued(added[1].id)
    begun = [task.id for _ in range(4) if (task := store.next()) is not None]
    assert begun == [added[0].id, added[2].id, added[3].id]


def test_a_task_that_is_stopped_is_as_if_it_had_not_begun(store: TaskStore) -> None:
    store.add("refresh", "papers", {})
    task = store.next()
    assert task is not None
    assert (task.state, task.attempts) == ("running", 1)
    store.append_event(task, "progress", {"done": 1})
    store.requeue(task, begun=False)
    left = store.get(task.id)
    assert (left.state, left.attempts, left.progress) == ("queued", 0, None)
    store.requeue(task, begun=True)
    assert store.get(task.id).attempts == 0
    again = store.next()
    assert again is not None
    assert again.started == task.started  # the first start is what is told

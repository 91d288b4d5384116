"""Tasks of an engine in this process: how they end, and how they are listed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fakes import HashingEncoder

import dsearch
from dsearch.client import LocalEngine
from dsearch.client.local.tasks import MOST_TASKS, ended_task
from dsearch.engine import Collection
from dsearch.errors import Cancelled, Conflict, InvalidRequest, NotFound


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    with dsearch.open(tmp_path / "home", encoder=HashingEncoder) as opened:
        for name in ("a", "b"):
            opened.create_collection(name)
        yield opened


def done(engine: LocalEngine, name: str = "a", error: Exception | None = None, kind: str = "compact") -> str:
    def work(collection: Collection) -> dict[str, Any]:
        if error is not None:
            raise error
        return {"of": collection.name}

    return ended_task(engine, kind, name, work).id


def test_a_task_has_ended_with_its_call(engine: LocalEngine) -> None:
    good = engine.task(done(engine))
    assert (good.kind, good.collection, good.state, good.result) == ("compact", "a", "done", {"of": "a"})
    assert (good.problem, good.attempts, good.progress) == (None, 1, None)
    bad = engine.task(done(engine, error=Conflict("not now")))
    assert (bad.state, bad.result) == ("failed", None)
    assert bad.problem is not None
    assert (bad.problem["code"], bad.problem["detail"]) == ("conflict", "not now")
    stopped = engine.task(done(engine, error=Cancelled("stopped")))
    assert (stopped.state, stopped.result, stopped.problem) == ("cancelled", None, None)
    assert engine.cancel_task(good.id) == good
    told: list[Any] = []
    assert engine.wait_for_task(good.id, on_progress=told.append) == good == told[0]
    with pytest.raises(ZeroDivisionError):
        done(engine, error=ZeroDivisionError())


def test_an_unknown_task_is_named_as_a_server_names_it(engine: LocalEngine) -> None:
    for call in (engine.task, engine.cancel_task, engine.wait_for_task):
        with pytest.raises(NotFound, match=r"^no task 'x' of this engine$") as refused:
            call("x")
        assert refused.value.code == "task_not_found"


def test_pages_of_tasks_begin_with_the_latest_and_the_last_names_no_next(engine: LocalEngine) -> None:
    ids = [done(engine) for _ in range(4)]
    first = engine.tasks(limit=2)
    assert ([task.id for task in first.tasks], first.next) == ([ids[3], ids[2]], "2")
    second = engine.tasks(limit=2, cursor=first.next)
    assert ([task.id for task in second.tasks], second.next) == ([ids[1], ids[0]], None)
    assert engine.tasks(limit=4).next is None
    assert engine.tasks(limit=3).next == "3"
    assert engine.tasks(cursor="4").tasks == []


def test_tasks_are_chosen_by_collection_and_state(engine: LocalEngine) -> None:
    of_a, failed = done(engine), done(engine, error=Conflict("no"))
    of_b = done(engine, "b")
    assert [task.id for task in engine.tasks(collection="a").tasks] == [failed, of_a]
    assert [task.id for task in engine.tasks(state="done").tasks] == [of_b, of_a]
    assert [task.id for task in engine.tasks(collection="b", state="failed").tasks] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, f"limit=0; use an integer from 1 to {MOST_TASKS}"),
        ({"limit": MOST_TASKS + 1}, "limit=1001; use"),
        ({"cursor": "-1"}, "cursor='-1'; use the `next` of an answer"),
        ({"cursor": "²"}, "use the `next` of an answer"),
        ({"state": "over"}, "state='over'; use one of "),
    ],
)
def test_a_wrong_page_is_refused(engine: LocalEngine, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        engine.tasks(**options)
    assert message in str(refused.value)
    assert engine.tasks(limit=1), engine.tasks(limit=MOST_TASKS)


def test_maintenance_says_what_it_did(engine: LocalEngine) -> None:
    engine.upsert("a", [{"id": str(n), "text": f"apple {n}"} for n in range(4)])
    refreshed = engine.refresh("a", kind="Flat").result
    assert refreshed is not None
    assert (refreshed["generation"], refreshed["model"]) == (2, "v0")
    assert refreshed["keys"]["kind"] == "Flat"
    compacted = engine.compact("a").result
    assert compacted is not None
    assert compacted["complete"] is True
    assert [task.kind for task in engine.tasks().tasks] == ["compact", "refresh"]
    with pytest.raises(InvalidRequest):
        engine.refresh("a", kind="Round")
    assert len(engine.tasks().tasks) == 2


def test_a_migration_to_another_encoder_than_that_of_the_engine_is_refused(engine: LocalEngine) -> None:
    with pytest.raises(Conflict, match="encoder='other': this engine moves collections to"):
        engine.migrate("a", encoder="other")


@pytest.mark.parametrize("device", ["cuda", None])
def test_trainings_run_on_the_device_that_was_given_else_on_that_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str | None
) -> None:
    monkeypatch.setenv("DSEARCH_DEVICE", "mps")
    with dsearch.open(tmp_path / "home", encoder=HashingEncoder, device=device) as engine:
        assert engine.device == (device or "mps")

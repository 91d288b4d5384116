"""What a command asks of a server: with which key, what it does without an answer, what failures say."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.cli import engine as engine_module
from dsearch.cli.engine import finished, reading, writing
from dsearch.client import Client, LocalEngine
from dsearch.errors import (
    AccessDenied,
    Command,
    Conflict,
    DsearchError,
    HomeLocked,
    KeyMissing,
    Unavailable,
)
from dsearch.types import Progress


@pytest.mark.parametrize("error", [AccessDenied("no key"), KeyMissing("no key"), Unavailable("starting")])
def test_files_are_read_where_the_server_answers_this_key_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: DsearchError
) -> None:
    def refuse(_: object) -> None:
        raise error

    monkeypatch.setattr(engine_module, "serving_url", lambda _: "http://127.0.0.1:9")
    monkeypatch.setattr(Client, "ready", lambda _: None)
    monkeypatch.setattr(Client, "collections", refuse)
    with reading(tmp_path) as engine:
        assert isinstance(engine, LocalEngine)
    monkeypatch.setattr(Client, "collections", lambda _: [])
    with reading(tmp_path) as engine:
        assert isinstance(engine, Client)


@pytest.mark.parametrize("key", [None, "ds_given"])
def test_a_command_sends_the_key_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    if key is not None:
        monkeypatch.setenv("DSEARCH_API_KEY", key)
    sent: list[Any] = []
    server: Any = SimpleNamespace(ready=lambda: None, collections=list)

    def client(url: str, *, api_key: str | None, retries: int = 3) -> Any:
        sent.append((url, api_key))
        return nullcontext(server)

    def opened(*_: object, **__: object) -> None:
        locked = HomeLocked("a server runs here")
        locked.url = "http://127.0.0.1:9"
        raise locked

    monkeypatch.setattr("dsearch.client.Client", client)
    monkeypatch.setattr(engine_module, "local_engine", opened)
    monkeypatch.setattr(engine_module, "serving_url", lambda _: "http://127.0.0.1:9")
    with writing(tmp_path) as writer, reading(tmp_path) as reader:
        assert writer is reader is server
    assert sent == [("http://127.0.0.1:9", key)] * 2


def test_a_task_that_failed_says_why_and_what_to_run() -> None:
    """The command to run is no part of the reason: the command line adds the home to it."""
    problem = {
        "code": "conflict",
        "detail": "two are there with: dsearch drop papers",
        "hint": {"name": "drop", "arguments": ["papers"]},
    }
    failed = SimpleNamespace(
        kind="refresh", collection="papers", state="failed", result=None, problem=problem
    )
    client: Any = SimpleNamespace(wait_for_task=lambda *_, **__: failed)
    with pytest.raises(Conflict) as told:
        finished(client, SimpleNamespace(id="t"))  # type: ignore[arg-type]
    assert told.value.hint == Command("drop", ("papers",))
    assert str(told.value) == (
        "the server's refresh of papers has failed: two are there with: dsearch drop papers"
    )


@pytest.mark.parametrize("eta_s", [30.0, 0.0])
def test_the_time_left_is_the_servers(monkeypatch: pytest.MonkeyPatch, eta_s: float) -> None:
    """Units may differ in cost: three of four may be all of the work. Nothing is drawn twice."""
    shown: list[Progress] = []
    monkeypatch.setattr(engine_module, "ProgressBars", lambda: nullcontext(shown.append))
    known = {"stage": "train", "done": 3, "total": 4, "elapsed_s": 10.0, "eta_s": eta_s}

    def wait_for_task(id: str, *, on_progress: Any, **_: object) -> Any:
        for progress in (None, known, known):
            on_progress(SimpleNamespace(progress=progress))
        return SimpleNamespace(state="done", result={}, problem=None)

    client: Any = SimpleNamespace(wait_for_task=wait_for_task)
    task: Any = SimpleNamespace(id="t")
    assert finished(client, task) == {}
    assert [each.seconds_left for each in shown] == [pytest.approx(eta_s)]

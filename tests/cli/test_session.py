"""The session of a command: its settings reach the engine, and progress is told where nobody watches."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from dsearch import engine as engine_package
from dsearch.cli.session import (
    ProgressBars,
    command_line,
    error_text,
    opened_engine,
    remember_home,
    show_outcome,
)
from dsearch.errors import NotFound
from dsearch.types import Progress


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Arguments of every engine that is opened."""
    every: list[Any] = []

    @contextmanager
    def recording(home: Path, **options: Any) -> Any:
        every.append({"home": home, **options})
        yield MagicMock()

    monkeypatch.setattr(engine_package, "SearchEngine", recording)
    monkeypatch.chdir(tmp_path)
    return every


def open_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readonly: bool = True, **own: Any) -> None:
    variables = {
        "NEXT_ENCODER": "following",
        "QUERY_CACHE_BYTES": "12345",
        "REBUILD_SHARE": "0.25",
        "DTYPE": "bfloat16",
        "THREADS": "2",
    }
    for name, value in variables.items():
        monkeypatch.setenv(f"DSEARCH_{name}", value)
    with opened_engine(tmp_path / "home", readonly=readonly, **own):
        pass


def test_each_setting_reaches_the_engine(
    opened: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_one(tmp_path, monkeypatch, encoder="present", device="cuda:1", backend="openvino", rebuild=True)
    (engine,) = opened
    assert (engine["home"], engine["readonly"]) == (tmp_path / "home", True)
    assert (engine["query_cache_bytes"], engine["rebuild_share"]) == (12345, 0.25)
    for source, name in ((engine["encoder"], "present"), (engine["next_encoder"], "following")):
        assert (source.name, source.device, source.backend, source.dtype) == (
            name,
            "cuda:1",
            "openvino",
            "bfloat16",
        )


def test_nothing_is_rebuilt_by_commands_and_no_encoder_follows_unless_named(
    opened: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_one(tmp_path, monkeypatch, readonly=False)
    monkeypatch.delenv("DSEARCH_NEXT_ENCODER")
    monkeypatch.setenv("DSEARCH_REBUILD_SHARE", "0")
    with opened_engine(tmp_path / "home", readonly=False, rebuild=True):
        pass
    assert [one["readonly"] for one in opened] == [False, False]
    assert [one["rebuild_share"] for one in opened] == [None, None]
    assert [one["next_encoder"] is None for one in opened] == [False, True]


def test_commands_in_messages_name_the_home_that_was_given() -> None:
    try:
        remember_home(Path("my home"))
        assert (
            command_line("promote", "v1", "-c", "papers") == "dsearch promote --home 'my home' v1 -c papers"
        )
        error = NotFound("no collection; make one with: PUT /v1/collections/papers")
        assert error_text(error) == (
            "no collection; make one with: dsearch index --home 'my home' SOURCE -c papers"
        )
    finally:
        remember_home(None)
    assert command_line("promote", "v1") == "dsearch promote v1"


def test_an_outcome_is_a_sentence_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    show_outcome("done", {"done": True}, json=False)
    assert capsys.readouterr().out == "done\n"
    show_outcome("done", {"done": True}, json=True)
    assert capsys.readouterr().out == '{\n  "done": true\n}\n'


@pytest.mark.parametrize(
    ("steps", "lines"),
    [
        ([Progress("encode", 5, 10, 9.9)], []),
        ([Progress("encode", 5, 10, 10.0)], ["encoding: 5/10 0.5 documents/s, ETA 10 s"]),
        ([Progress("encode", 10, 10, 0.9)], []),  # over at once
        ([Progress("encode", 10, 10, 2.0)], ["encoding: 10/10 5.0 documents/s"]),
        ([Progress("send", 200, 0, 10.0)], ["sending: 200/? 20 documents/s"]),
        ([Progress("own", 200, 0, 10.0)], ["own: 200/? 20 documents/s"]),
        (
            [Progress("read", 1, 0, 10.0), Progress("read", 2, 0, 19.0), Progress("read", 3, 0, 20.0)],
            ["reading: 1/? 0.1 documents/s", "reading: 3/? 0.1 documents/s"],
        ),
        (
            [
                Progress("read", 1, 0, 10.0),
                Progress("encode", 100, 200, 1.0),
                Progress("encode", 110, 200, 11.0),
            ],
            ["reading: 1/? 0.1 documents/s", "encoding: 110/200 10 documents/s, ETA 9 s"],
        ),
    ],
)
def test_a_line_every_ten_seconds_and_at_the_end(
    capsys: pytest.CaptureFixture[str], steps: list[Progress], lines: list[str]
) -> None:
    with ProgressBars() as tell:
        for step in steps:
            tell(step)
    assert [line for line in capsys.readouterr().err.splitlines() if line.strip()] == lines

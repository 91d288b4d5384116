"""Commands in messages: with and without a home, carried by errors, and all of them commands that exist."""

from __future__ import annotations

import ast
import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

import dsearch
from dsearch.cli.grouped_help import app
from dsearch.client.wire import HttpReply, error_of
from dsearch.errors import Command, CorruptData, HomeLocked, InvalidRequest, amount
from dsearch.service.wire.problems import problem_of

REFRESH = Command("refresh", ("-c", "papers"))


@pytest.mark.parametrize(
    ("command", "home", "line"),
    [
        (REFRESH, None, "dsearch refresh -c papers"),
        (REFRESH, "/b c", "dsearch refresh --home '/b c' -c papers"),
        (Command("feedback clear", ("--damaged",)), "h", "dsearch feedback clear --home h --damaged"),
        (Command("restore", ("my backup",)), None, "dsearch restore 'my backup'"),
        (Command("serve"), "h", "dsearch serve --home h"),
    ],
)
def test_a_command_is_written_as_it_is_typed(command: Command, home: str | None, line: str) -> None:
    assert command.line(home) == line
    if home is None:
        assert str(command) == line


def test_an_error_ends_in_its_command() -> None:
    error = CorruptData("generation 2 is damaged; build it again", hint=REFRESH)
    assert error.message == "generation 2 is damaged; build it again"
    assert str(error) == f"{error.message} with: dsearch refresh -c papers"
    assert error.text("h") == f"{error.message} with: dsearch refresh --home h -c papers"
    plain = InvalidRequest("limit=0; use 1 or more")
    assert str(plain) == plain.message == plain.text("h") == "limit=0; use 1 or more"


def test_a_command_goes_with_its_error_to_another_process() -> None:
    error = HomeLocked("taken; stop it", hint=REFRESH)
    error.url = "http://here"
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(again), again.hint, again.url) == (str(error), REFRESH, "http://here")


def test_a_command_comes_back_from_an_http_answer() -> None:
    error = CorruptData("generation 2 is damaged; build it again", hint=REFRESH)
    response = problem_of(error)
    assert b'"hint":{"name":"refresh","arguments":["-c","papers"]}' in response.body
    again = error_of(HttpReply(response.status_code, dict(response.headers), bytes(response.body)))
    assert (type(again), str(again), again.hint) == (CorruptData, str(error), REFRESH)
    assert b"hint" not in problem_of(InvalidRequest("no")).body


def test_every_command_in_a_message_exists_and_takes_a_home() -> None:
    found = list(commands_in_messages())
    assert len(found) > 20
    for place, name in found:
        assert name in with_home(), place


def commands_in_messages() -> Iterator[tuple[str, str]]:
    """The first argument of each `Command(…)` and `typed(…)` of the package, with its place."""
    for path in sorted(Path(dsearch.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(ast.Name("Command" | "typed"), [ast.Constant(str(name)), *_]):
                    yield f"{path}:{node.lineno}", name
                case _:
                    pass


def with_home() -> set[str]:
    """The commands that take `--home`."""
    names: set[str] = set()
    for name, command in getattr(get_command(app), "commands", {}).items():
        inside = getattr(command, "commands", None)
        named = {name: command} if inside is None else {f"{name} {one}": it for one, it in inside.items()}
        names.update(one for one, it in named.items() if any("--home" in each.opts for each in it.params))
    return names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (amount(1, "document"), "1 document"),
        (amount(0, "document"), "0 documents"),
        (amount(2, "judged query"), "2 judged queries"),
        (amount(2, "key"), "2 keys"),
        (amount(1, "file waits", "files wait"), "1 file waits"),
        (amount(3, "file waits", "files wait"), "3 files wait"),
    ],
)
def test_a_count_has_its_noun(text: str, expected: str) -> None:
    assert text == expected

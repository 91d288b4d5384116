"""scripts/trials/attack.py, small: an attack from outside breaks no promise, and it can find a broken one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import IO

import pytest
from support.paths import ROOT
from support.sizes import by_size
from support.tiny_encoder import write_tiny_encoder
from support.warm.processes import WarmProcess, warm_start

SCRIPT = ROOT / "scripts" / "trials" / "attack.py"

pytestmark = [pytest.mark.server, pytest.mark.crash]

# Disk, backups and bombs start a dozen processes: nightly.
EVERY_TIME = ["kill", "flip", "fuzz", "poison", "overload", "slow", "home", "site", "scope"]


@pytest.fixture(scope="module")
def attack() -> Iterator[ModuleType]:
    """The program as a module; it is no part of a package."""
    sys.path.insert(0, str(SCRIPT.parent))
    yield importlib.import_module("attack")
    sys.path.remove(str(SCRIPT.parent))
    for name in ("attack", "attacked", "break_ins"):
        del sys.modules[name]


class WarmServers:
    """In place of the program's `subprocess`: three servers that start cold import for twenty seconds."""

    @staticmethod
    def Popen(command: list[str], *, stdout: IO[bytes], stderr: IO[bytes]) -> WarmProcess:
        return warm_start()(command, stdout=stdout.fileno(), stderr=stderr.fileno())


def test_a_small_attack_breaks_no_promise(
    attack: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = write_tiny_encoder(tmp_path)
    sizes = "--kills 1 --flips 8 --fuzz 60 --events 8 --clients 4 --seconds 0.5"
    sizes += " --slow 40 --uploads 2 --limits 1"
    rounds = by_size(EVERY_TIME, [*attack.ROUNDS])
    for name in ("attacked", "break_ins"):
        monkeypatch.setattr(sys.modules[name], "subprocess", WarmServers)
    monkeypatch.setattr(
        sys, "argv", [str(SCRIPT), "--encoder", str(encoder), *sizes.split(), "--rounds", ",".join(rounds)]
    )
    monkeypatch.delenv("DSEARCH_HOME", raising=False)
    code = attack.main()
    output, errors = capsys.readouterr()
    assert code == 0, output + errors
    header, *rows = output.splitlines()
    assert header.split() == ["round", "trials", "broken", "seen"]
    assert [row.split()[0] for row in rows] == rounds
    assert all(int(row.split()[1]) > 0 and row.split()[2] == "0" for row in rows)


def test_a_server_that_answers_500_is_found(attack: ModuleType) -> None:
    """Vacuity: a promise that is broken is counted and named."""

    class Broken:
        def ask(self, *_: object, **__: object) -> tuple[int, object]:
            return 500, {"query_id": "q", "hits": [{"id": "a"}]}

        patient = ask

        def raw(self, _: bytes) -> bytes:
            return b"HTTP/1.1 500 Internal Server Error\r\n\r\n"

        def rankings(self) -> list[list[str]]:
            return []

    options = attack.parsed(["--fuzz", "5", "--events", "5"])
    for name in ("fuzz", "poison"):
        outcome = attack.ROUNDS[name](Broken(), options, attack.random.Random(0))
        assert len(outcome.broken) >= 5
        assert outcome.row().split()[:3] == [name, "5", str(len(outcome.broken))]


def test_a_server_that_sheds_load_is_asked_again(
    attack: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a busy machine a search may be late or refused: no promise is broken, and nothing is to be read."""
    server = attack.Server(tmp_path, None)
    answers = iter([(503, {}), OSError("reset"), (504, {}), *(3 * [(200, {"hits": [{"id": "a"}]})])])

    def ask(*_: object, **__: object) -> tuple[int, object]:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(server, "ask", ask)
    assert server.rankings() == [["a"]] * len(attack.QUERIES)


def test_an_unknown_round_is_refused(attack: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        attack.parsed(["--rounds", "kill,bribe"])
    assert (
        "no round 'bribe'; use some of kill, flip, fuzz, poison, overload, slow, full"
        in capsys.readouterr().err
    )

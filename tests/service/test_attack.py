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

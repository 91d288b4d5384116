"""scripts/tools/audit fails on known vulnerabilities alone, never on a network or tool that is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import SCRIPTS
from support.patience import LATEST_S

SCRIPT = SCRIPTS / "tools" / "audit"
CLEAN = {"name": "numpy", "version": "2.0", "vulns": []}
UNKNOWN = {"name": "torch", "skip_reason": "Dependency not found on PyPI"}
FLAWED = {"name": "uvicorn", "version": "0.1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["0.2", "0.3"]}]}


def audited(folder: Path, output: str | None, code: int = 0) -> subprocess.CompletedProcess[str]:
    """What the script says where pip-audit prints `output` and ends with `code`; None: it is not there."""
    if output is not None:
        tool = folder / "pip-audit"
        tool.write_text(f"#!{sys.executable}\nprint({output!r})\nraise SystemExit({code})\n")
        tool.chmod(0o755)
    python = folder / "python"  # a pip-audit beside the interpreter would be found first
    python.symlink_to(sys.executable)
    environment = {"PATH": str(folder)}
    command = [str(python), str(SCRIPT), "constraints.txt"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LATEST_S)


def test_a_vulnerable_version_is_named(tmp_path: Path) -> None:
    ran = audited(tmp_path, json.dumps({"dependencies": [CLEAN, UNKNOWN, FLAWED]}), 1)
    assert ran.returncode == 1
    assert ran.stderr == "uvicorn 0.1: PYSEC-1, fixed in 0.2 or 0.3\n"


def test_nothing_is_said_where_nothing_is_known(tmp_path: Path) -> None:
    ran = audited(tmp_path, json.dumps({"dependencies": [CLEAN, UNKNOWN]}))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("output", "code", "why"),
    [
        (None, 0, "not installed"),
        ("", 1, "cannot be reached"),
        ("<html>blocked</html>", 0, "cannot be reached"),
        (json.dumps({"dependencies": [UNKNOWN]}), 0, "knows none of the packages"),
        (json.dumps([]), 1, "cannot be reached"),
    ],
)
def test_what_was_not_looked_up_is_said_in_one_line(
    tmp_path: Path, output: str | None, code: int, why: str
) -> None:
    ran = audited(tmp_path, output, code)
    assert ran.returncode == 0
    assert why in ran.stderr
    assert ran.stderr.count("\n") == 1

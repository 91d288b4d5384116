"""What scripts/deploy holds, as far as it can be proved without a container runtime."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from dsearch.cli.grouped_help import app
from dsearch.config import Settings

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "scripts" / "deploy"


def options_of(command: str) -> set[str]:
    """Every option of a command of the command line."""
    group: Any = typer.main.get_command(app)
    return {flag for parameter in group.commands[command].params for flag in parameter.opts}


def checked(line: str) -> None:
    """A command line of dsearch has options that exist."""
    program, command, *rest = shlex.split(line)
    assert Path(program).name == "dsearch", line
    flags = {word for word in rest if word.startswith("-")}
    assert flags <= options_of(command), (line, flags - options_of(command))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_is_valid_and_hardened(tmp_path: Path) -> None:
    text = (DEPLOY / "dsearch.service").read_text()
    program = tmp_path / "dsearch"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "dsearch.service"
    unit.write_text(text.replace("/opt/dsearch/bin/dsearch", str(program)))
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    secure = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(unit)]
    rated = subprocess.run(secure, capture_output=True, text=True, check=False)
    assert rated.returncode == 0, rated.stdout[-300:]  # an exposure of at most 2.0 of 10


def test_the_units_command_line_exists() -> None:
    [line] = re.findall(r"^ExecStart=(.*)$", (DEPLOY / "dsearch.service").read_text(), re.MULTILINE)
    checked(line)


def test_the_container_runs_as_nobody_in_a_volume() -> None:
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    words = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    of = {name: rest for name, rest in words if name not in ("RUN", "COPY", "FROM")}
    assert of["USER"] == "10001"
    assert of["VOLUME"] == "/data"
    assert of["STOPSIGNAL"] == "SIGTERM"
    assert "/healthz" in of["HEALTHCHECK"]
    variables = [pair.partition("=") for pair in of["ENV"].split()]
    settings = {
        name.removeprefix("DSEARCH_").lower(): value for name, _, value in variables if "DSEARCH" in name
    }
    assert settings["home"] == "/data"
    assert Settings(**settings).port == 8080  # type: ignore[arg-type]  # an unknown name is an error
    checked(" ".join(word.strip('",[]') for word in f"{of['ENTRYPOINT']} {of['CMD']}".split()))
    copied = [
        path for name, rest in words if name == "COPY" and "--from" not in rest for path in rest.split()[:-1]
    ]
    assert [path for path in copied if not (ROOT / path).exists()] == []


def test_the_containerfile_has_no_findings(tmp_path: Path) -> None:
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if linter is None:
        pytest.skip("hadolint is not installed")

    def findings(path: Path) -> tuple[int, str]:
        ran = subprocess.run([linter, str(path)], capture_output=True, text=True, check=False)
        return ran.returncode, ran.stdout

    assert findings(DEPLOY / "Containerfile") == (0, "")
    untagged = tmp_path / "Containerfile"
    untagged.write_text("FROM debian\n")
    assert "DL3006" in findings(untagged)[1]


def test_the_composition_keeps_the_container_confined() -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["dsearch"]
    assert service["volumes"] == ["data:/data"]
    assert service["ports"] == ["127.0.0.1:8080:8080"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    checked(f"dsearch {' '.join(service['command'])}")


def test_the_workflows_commands_exist() -> None:
    steps = yaml.safe_load((DEPLOY / "search-quality.yaml").read_text())["jobs"]["evaluate"]["steps"]
    commands = [step["run"] for step in steps if step.get("run", "").startswith("dsearch")]
    assert len(commands) == 2
    for command in commands:
        checked(command)


def test_the_manual_page_has_every_command(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "tools" / "man_page.py"
    page = tmp_path / "dsearch.1"
    subprocess.run([sys.executable, str(script), str(page)], check=True)
    text = page.read_text()
    assert text.startswith(".TH DSEARCH 1")
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        assert f".SS dsearch {name}".replace("-", "\\-") in text, name
        for flag in (
            flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")
        ):
            assert flag.replace("-", "\\-") in text, (name, flag)
    if shutil.which("man"):
        ran = subprocess.run(
            ["man", "--warnings", "-l", str(page)], capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, "")

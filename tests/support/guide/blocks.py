"""Runs the code blocks of a Markdown file, from top to bottom, as a reader would.

`python` blocks share one session; `sh` blocks run in bash, in one folder, with `dsearch` on the path. A block
that serves (`dsearch serve`) runs in the background from then on, at a port of its own, which stands for the
one that the text names. A block that is not to be run carries another language (`text`, `json`, `toml`).

`dsearch` is the entry point as it is installed, but it starts warm (`support/warm`): a cold command imports
for several seconds, and a page has up to fifteen.

Whoever runs a file may name lines to pass over, commands that may end with 3 (trained, but not live), and
commands before which a reader stops the server.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from support.paths import SUPPORT
from support.patience import LATEST_S
from support.ports import free_port
from support.warm.processes import VARIABLE, warm_start

ENTRY_POINT = Path(sys.executable).parent / "dsearch"
NAMED_PORT = "8080"
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """Code of a file, and the line above its first."""

    language: str
    code: str
    line: int


def blocks_of(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    return [Block(found[1], found[2], text[: found.start(2)].count("\n")) for found in _BLOCK.finditer(text)]


def run_blocks(
    path: Path,
    folder: Path,
    *,
    passed_over: Collection[str] = (),
    may_be_kept: Collection[str] = (),
    meanwhile: Callable[[str], None] | None = None,
) -> int:
    """Run all blocks with `folder` as the present one; how many there were. Raises what goes wrong.

    Args:
        path: the Markdown.
        folder: where.
        passed_over: how lines begin that are not run.
        may_be_kept: how lines of sh begin whose exit code may be 3, too.
        meanwhile: what others do at the server's address while it serves.
    """
    session: dict[str, object] = {"__name__": "guide"}
    blocks = blocks_of(path)
    with _inside(folder), contextlib.ExitStack() as servers:
        port = str(free_port())
        for block in blocks:
            code = _passing_over(passed_over, block.code.replace(NAMED_PORT, port))
            for command in may_be_kept:
                code = re.sub(rf"^({re.escape(command)}\b[^#\n]*)", r"\1 || test $? = 3 ", code, flags=re.M)
            if block.language == "python":
                exec(compile("\n" * block.line + code, str(path), "exec"), session)
            elif re.search(r"^dsearch serve\b", code, re.MULTILINE):
                servers.enter_context(_serving(code, port, folder))
                if meanwhile is not None:
                    meanwhile(f"http://127.0.0.1:{port}")
            else:
                _bash(code, folder, f"{path.name}, line {block.line}")
    return len(blocks)


def _passing_over(beginnings: Collection[str], code: str) -> str:
    lines = code.splitlines()
    return "\n".join("" if line.startswith(tuple(beginnings)) else line for line in lines) + "\n"


def pictures_of(path: Path) -> list[str]:
    """The pictures that a file shows and that its own code draws."""
    text = path.read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]*\]\(([\w-]+\.png)\)", text)
    return [name for name in shown if f'savefig("{name}"' in text]


@functools.cache
def _warm_commands() -> tempfile.TemporaryDirectory[str]:
    """A folder for the path, whose `dsearch` starts warm; it goes with this process."""
    folder = tempfile.TemporaryDirectory(prefix="commands-")
    command = Path(folder.name) / "dsearch"
    words = [sys.executable, "-IS", SUPPORT / "warm" / "command.py", ENTRY_POINT]
    command.write_text(f'#!/bin/sh\nexec {" ".join(shlex.quote(str(word)) for word in words)} "$@"\n')
    command.chmod(0o755)
    return folder


def environment() -> dict[str, str]:
    paths = [_warm_commands().name, str(ENTRY_POINT.parent), os.environ["PATH"]]
    return {**os.environ, "PATH": os.pathsep.join(paths), VARIABLE: warm_start().address}


def _bash(code: str, folder: Path, where: str) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=1200,  # of a block of many commands, on a busy machine
        check=False,
    )
    assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{code}\n{done.stdout}\n{done.stderr}"


@contextlib.contextmanager
def _serving(code: str, port: str, folder: Path) -> Iterator[None]:
    command = re.sub(r"^(dsearch serve)\b", rf"exec \1 --port {port}", code, count=1, flags=re.MULTILINE)
    server = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=environment(), start_new_session=True
    )
    try:
        _wait_until_ready(f"http://127.0.0.1:{port}/readyz", server)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(LATEST_S)


def _wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 900  # a block may do much before it serves, on a busy machine
    while time.monotonic() < until:
        assert server.poll() is None, f"the server ended with {server.returncode}"
        try:
            with urllib.request.urlopen(url, timeout=LATEST_S):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"{url} did not answer")


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)

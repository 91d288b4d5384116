"""Standard streams that are closed, full, cut off or of another encoding: no traceback, the right code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The command line with a command that does what `say` is: the streams are those of the whole process.
CODE = """
import sys
import dsearch.cli.grouped_help as at
from dsearch.cli import main
at.app = lambda: eval(sys.argv[1])
main()
"""
FULL = Path("/dev/full")


def ran(said: str, redirected: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    line = f'exec "$0" -c "$1" "$2" {redirected}'
    return subprocess.run(
        ["bash", "-c", line, sys.executable, CODE, said],
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_empty_ones(closed: str) -> None:
    said = ran(
        "(print(sys.stdin.read()), print(sys.stderr.isatty()), sys.stdout.isatty())", f"{closed} </dev/null"
    )
    assert (said.returncode, "Traceback" in said.stderr) == (0, False)


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
@pytest.mark.parametrize("flush", [True, False])  # in the command, or at its end
def test_an_answer_that_cannot_be_written_is_one_line(flush: bool) -> None:
    said = ran(f"print('hit', flush={flush})", f">{FULL}")
    assert said.returncode == 1
    expected = "dsearch: [Errno 28] No space left on device; make room, or let the output go elsewhere\n"
    assert said.stderr == expected


def test_a_reader_that_has_seen_enough_hears_nothing() -> None:
    said = ran("[print('hit') for _ in range(100_000)]", "| head -1")
    assert (said.stdout, said.stderr) == ("hit\n", "")


def test_a_terminal_of_another_encoding_shows_what_it_can() -> None:
    said = ran("print('caf\\u00e9 \\u65e5')", PYTHONIOENCODING="latin-1")
    assert (said.returncode, said.stdout.encode(errors="replace")) == (0, b"caf\xef\xbf\xbd ?\n")


@pytest.mark.parametrize("output", ["none/at/all", ".", "x" * 300])
def test_a_path_that_cannot_be_written_is_one_line(output: str) -> None:
    said = ran(f"open({output!r}, 'w')")
    assert said.returncode == 1
    assert said.stderr.count("\n") == 1
    assert said.stderr.startswith(f"dsearch: {output}: ")
    assert "check the path" in said.stderr


def test_an_error_of_no_path_keeps_its_traceback() -> None:
    assert "Traceback" in ran("(_ for _ in ()).throw(OSError(9, 'bad descriptor'))").stderr

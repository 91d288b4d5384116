"""The command line: thin verbs over the library. stdout carries the answer, stderr everything else.

Exit codes: 0 done; 1 it failed (the message gives the reason and what to do); 2 the command was not
understood; 3 the gate rejected a model that was trained and saved, or what answers is worse than the baseline
of `evaluate`; 130 it was interrupted.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path

INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    from dsearch.threads import let_waiting_threads_sleep

    let_waiting_threads_sleep()  # before any command loads numpy
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):  # a terminal of another encoding shows "?" for what it lacks
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    from dsearch.cli.grouped_help import app
    from dsearch.errors import DsearchError

    try:
        app()
    except DsearchError as error:
        from dsearch.cli.session import error_text

        print(f"dsearch: {error_text(error)}", file=sys.stderr)
        sys.exit(1)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:  # as typer ends a command at Ctrl-C
            print(f"dsearch: interrupted; {_how_to_go_on(sys.argv[1:])}", file=sys.stderr)
        raise
    except BrokenPipeError:
        # Whoever read the answer has seen enough (`| head`). Closing stdout again at exit would complain.
        sys.stderr.close()
        sys.exit(1)


def _open_what_is_closed() -> None:
    """Replace standard streams that were closed before the start (`>&-`, services without a terminal)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def _how_to_go_on(arguments: list[str]) -> str:
    """Name the command to type after Ctrl-C: what was stored stays, and the same one goes on with it."""
    import shlex

    return f"to go on, run it again: dsearch {shlex.join(arguments)}"

"""The command line: thin verbs over the library. stdout carries the answer, stderr everything else.

Exit codes: 0 done; 1 it failed (the message gives the reason and what to do); 2 the command was not
understood; 3 the gate rejected a model that was trained and saved, or what answers is worse than the baseline
of `evaluate`; 130 it was interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from io import TextIOWrapper
from pathlib import Path

INTERRUPTED = 130
# What may be wrong with a path that was given.
_OF_PATHS = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
)


def main() -> None:
    """Run the command line."""
    try:
        _run_command()
    except KeyboardInterrupt:  # before typer takes over, and after it
        _tell_interruption()
        sys.exit(INTERRUPTED)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:  # as typer ends a command at Ctrl-C
            _tell_interruption()
        raise


def _run_command() -> None:
    from dsearch.threads import let_waiting_threads_sleep

    let_waiting_threads_sleep()  # before any command loads numpy
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):  # a terminal of another encoding shows "?" for what it lacks
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    from dsearch.cli.grouped_help import app
    from dsearch.errors import DsearchError

    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except DsearchError as error:
        from dsearch.cli.session import error_text

        print(f"dsearch: {error_text(error)}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # The reader closed the pipe (`| head`). Closing stdout again at exit would complain.
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        if error.filename is not None and error.errno in _OF_PATHS:
            print(
                f"dsearch: {error.filename}: {error.strerror}; check the path and its rights", file=sys.stderr
            )
            sys.exit(1)
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer would complain at exit
        print(f"dsearch: {error}; make room, or let the output go elsewhere", file=sys.stderr)
        sys.exit(1)


def _tell_interruption() -> None:
    """Name what stands after Ctrl-C, and the command that goes on."""
    from dsearch.cli.grouped_help import interruption_line

    print(interruption_line(sys.argv[1:]), file=sys.stderr)


def _open_what_is_closed() -> None:
    """Replace standard streams that were closed before the start (`>&-`, services without a terminal)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115

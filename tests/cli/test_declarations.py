"""Declarations of the command line: records are frozen, arguments are read, but for those named."""

from __future__ import annotations

from support.record_classes import unlike_the_others
from support.unused_arguments import unread


def test_records_are_declared_alike() -> None:
    assert unlike_the_others("cli") == {
        "Folders": "-frozen",
    }


def test_each_argument_is_read() -> None:
    assert unread("cli") == {
        "cli.grouped_help._root: version",  # read by its callback
        "cli.grouped_help.list_commands: ctx",  # typer's signature
        "cli.training.session.press: frame",  # a signal's signature
        "cli.training.session.press: number",  # a signal's signature
    }

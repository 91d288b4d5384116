"""`dsearch watch`: keeps a collection current with a folder."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from dsearch.cli import options
from dsearch.cli.commands.index import index
from dsearch.cli.session import error_text, say
from dsearch.errors import DsearchError, InvalidSource

WAIT_MS = 1600  # for more changes: programs write a file in several steps
STARTED_MS = 500


def watch(
    folder: Annotated[Path, typer.Argument(help="The folder.")],
    collection: options.CollectionName = "default",
    keep: Annotated[
        bool, typer.Option("--keep", help="Add only: documents whose files are gone stay.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Delete any number of documents whose files are gone.")
    ] = False,
    ignored: Annotated[bool, typer.Option("--ignored", help="Read what .gitignore files name, too.")] = False,
    home: options.HomeFolder = None,
) -> None:
    """Index a folder now and after each change in it, until Ctrl-C (extra watch). A server may run beside."""
    from dsearch.config import load_settings
    from dsearch.corpus.formats.lines import optional

    watchfiles = optional("watchfiles", extra="watch", what="Folders that are watched")
    if not folder.is_dir():
        raise InvalidSource(f"{folder}: not a folder; watch one, and index single files with dsearch index")

    def update() -> None:
        try:
            index([str(folder)], collection=collection, home=home, keep=keep, yes=yes, ignored=ignored)
        except typer.Exit:
            pass  # it said why
        except DsearchError as error:  # a folder may be empty for a while, a home locked
            say(f"dsearch: {error_text(error)}")

    is_source = outside(load_settings(home=home).home)
    while True:  # once for each folder of this name: a removed one is no longer watched, a new one not yet
        present = waited_for(folder)
        started = False
        for changes in watchfiles.watch(
            folder,
            watch_filter=lambda _change, path: is_source(path),
            debounce=WAIT_MS,
            rust_timeout=STARTED_MS,
            yield_on_timeout=True,
            raise_interrupt=True,
        ):
            gone = any(
                change == watchfiles.Change.deleted and is_at(path, folder) for change, path in changes
            )
            if gone or identity(folder) != present:
                break
            if changes or not started:  # the first time it watches already, so that no change is missed
                update()
            if not started:
                say(f"watching {folder}; end it with Ctrl-C")
                started = True
        else:
            return


def waited_for(folder: Path) -> tuple[int, int]:
    """Wait until there is a folder, and tell that it is missing; its identity."""
    silent = True
    while (present := identity(folder)) is None:
        if silent:
            say(f"{folder} is gone: its documents stay; it is indexed when it is back; end it with Ctrl-C")
            silent = False
        time.sleep(STARTED_MS / 1000)
    return present


def identity(folder: Path) -> tuple[int, int] | None:
    """Device and inode of a folder; None where there is none."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


def is_at(path: str, folder: Path) -> bool:
    """Test whether a path is that of the folder."""
    return os.path.abspath(path) == os.path.abspath(folder)


def outside(home: Path) -> Callable[[str], bool]:
    """Test of paths: not hidden, and not in the home, which indexing itself changes."""
    inside = os.path.realpath(home) + os.sep

    def is_source(path: str) -> bool:
        name = os.path.basename(path)
        hidden = name.startswith(".") and name != ".gitignore"
        return not hidden and not os.path.realpath(path).startswith(inside)

    return is_source

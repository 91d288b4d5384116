"""Errors of the file system during maintenance, in words: what stands, and what to do."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from dsearch.errors import Command, InsufficientStorage, Unavailable
from dsearch.index.durable import FULL
from dsearch.store import Store


@contextmanager
def disk_errors(store: Store, command: str) -> Generator[None]:
    """Translate an error of the file system inside the block, which changes no document.

    Args:
        store: store of the collection.
        command: command to run again, "refresh" or "compact".

    Raises:
        InsufficientStorage: the disk is full.
        Unavailable: it cannot be read or written.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in FULL
        advice = "free space" if full else "check the disk (is it mounted read-only now?) and permissions"
        raise (InsufficientStorage if full else Unavailable)(
            f"{store.path}: {command} was stopped by the disk ({error}). All documents stand, and a whole "
            f"index answers; what was begun is removed by the next run: {advice}, then run it again",
            hint=Command(command, ("-c", store.name)),
        ) from error

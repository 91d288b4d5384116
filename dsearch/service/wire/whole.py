"""Files that clients send: on the disk whole, or not there."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from dsearch.engine.indexing.disk_errors import FULL
from dsearch.errors import InsufficientStorage, Unavailable


@contextmanager
def whole_or_gone(*places: Path, problem: str) -> Generator[None]:
    """Remove files if the block that writes them raises; a full disk would stay full of them.

    Args:
        places: the files.
        problem: start of the message: "the file could not be kept".

    Raises:
        InsufficientStorage: the disk is full.
        Unavailable: it cannot be written.
    """
    try:
        yield
    except BaseException as error:  # a client that left, too
        for place in places:
            place.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        full = error.errno in FULL
        raise (InsufficientStorage if full else Unavailable)(
            f"{problem} ({error.strerror}); "
            f"{'free space on' if full else 'check'} the disk of the server, then send it again"
        ) from error

"""Errors of the file system during maintenance, each by its code."""

from __future__ import annotations

import errno
import os

import pytest

from dsearch.engine import SearchEngine
from dsearch.engine.rebuild import disk_errors
from dsearch.errors import DsearchError, InsufficientStorage, Unavailable

CODES: list[tuple[int, type[DsearchError], str]] = [
    (errno.ENOSPC, InsufficientStorage, "free space, then run it again"),
    (errno.EDQUOT, InsufficientStorage, "free space, then run it again"),  # the user's share is spent
    (errno.EIO, Unavailable, "check the disk (is it mounted read-only now?) and permissions"),
    (errno.EROFS, Unavailable, "check the disk"),
    (errno.EACCES, Unavailable, "check the disk"),
]


@pytest.mark.parametrize(("code", "kind", "advice"), CODES)
@pytest.mark.parametrize("command", ["refresh", "compact"])
def test_each_code_has_its_error_and_advice(
    engine: SearchEngine, command: str, code: int, kind: type[DsearchError], advice: str
) -> None:
    store = engine.create("food").store
    with pytest.raises(DsearchError) as raised, disk_errors(store, command):
        raise OSError(code, os.strerror(code))
    assert type(raised.value) is kind
    message = str(raised.value)
    assert message.startswith(f"{store.path}: {command} was stopped by the disk (")
    assert os.strerror(code) in message
    assert advice in message
    assert message.endswith(f"run it again with: dsearch {command} -c food")


def test_other_errors_and_none_pass(engine: SearchEngine) -> None:
    store = engine.create("food").store
    with disk_errors(store, "refresh"):
        pass
    with pytest.raises(ValueError, match="not of the disk"), disk_errors(store, "refresh"):
        raise ValueError("not of the disk")

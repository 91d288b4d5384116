"""State that several threads share is used under its lock alone: in a test each access to it is checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

_TESTS = str(Path(__file__).resolve().parents[1])


class _Guarded:
    """An attribute of a class; every access from its code needs the lock of the same object."""

    def __init__(self, name: str, lock: str, free: tuple[str, ...]):
        self._name, self._lock, self._free = name, lock, free

    def __get__(self, owner: Any, _: type) -> Any:
        self._require(owner)
        return vars(owner)[self._name]

    def __set__(self, owner: Any, value: Any) -> None:
        self._require(owner)
        vars(owner)[self._name] = value

    def _require(self, owner: Any) -> None:
        code = sys._getframe(2).f_code  # pyright: ignore[reportPrivateUsage]
        free = code.co_name in ("__init__", *self._free) or code.co_filename.startswith(_TESTS)
        if not free and not _held(getattr(owner, self._lock)):
            raise AssertionError(f"{code.co_qualname} uses {self._name} without {self._lock}")


def _held(lock: Any) -> bool:
    """Return True if a thread holds it; for conditions and locks that are taken again, if this one does."""
    return lock.locked() if hasattr(lock, "locked") else lock._is_owned()


def guarded(of: type, *names: str, lock: str = "_lock", free: tuple[str, ...] = ()) -> Any:
    """A fixture of all tests of a module: attributes of a class are used under its lock.

    Args:
        of: the class.
        names: its attributes.
        lock: the attribute that is the lock.
        free: methods that need none, since what they read is one number, or nobody else has the object yet.
    """

    @pytest.fixture(autouse=True)
    def every_access_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
        for name in names:
            monkeypatch.setattr(of, name, _Guarded(name, lock, free), raising=False)

    return every_access_is_checked

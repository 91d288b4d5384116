"""Ids of requests and of shown pages: random, and not to be guessed.

The operating system is asked for many at a time. Each time it is asked the thread lets go of Python's lock,
and where a search computes it waits until it has that again; that was twice a request.
"""

from __future__ import annotations

import os

_BYTES = 16
_BLOCK = 256  # ids

_made: list[str] = []


def new_id() -> str:
    """Thirty-two hexadecimal digits that nobody has had."""
    try:
        return _made.pop()  # one step: no two threads get the same
    except IndexError:
        digits, each = os.urandom(_BYTES * _BLOCK).hex(), 2 * _BYTES
        _made.extend(digits[start : start + each] for start in range(each, len(digits), each))
        return digits[:each]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_made.clear)

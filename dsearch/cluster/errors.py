"""Internal errors for shards that do not respond, raised before a caller decides how to proceed."""

from __future__ import annotations

from collections.abc import Iterable


class ShardsLost(Exception):  # it is caught here, and never shown
    """Some shards of a release do not answer."""

    def __init__(self, numbers: Iterable[int]):
        super().__init__(f"shards {sorted(numbers)} do not answer")
        self.numbers = frozenset(numbers)


class NotOpen(Exception):  # so is this
    """A copy runs, but has not been able to open its shard yet."""

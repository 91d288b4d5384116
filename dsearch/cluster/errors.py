"""Internal errors for shards that do not respond, raised before a caller decides how to proceed."""

from __future__ import annotations

from collections.abc import Iterable


class ShardsLost(Exception):  # caught within this package, never shown
    """Some shards of a release do not answer."""

    def __init__(self, numbers: Iterable[int]):
        super().__init__(f"shards {sorted(numbers)} do not answer")
        self.numbers = frozenset(numbers)


class NotOpen(Exception):  # caught within this package too
    """A copy runs, but could not open its shard yet."""

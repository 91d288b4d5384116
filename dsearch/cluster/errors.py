"""What can be wrong with a cluster."""

from __future__ import annotations

from collections.abc import Iterable

from dsearch.errors import Conflict, Unavailable


class ShardsMissing(Unavailable):
    """No copy of some shards answers; they are being restarted, and the message says what share they are."""

    code = "shards_missing"


class NotInCluster(Conflict):
    """A route that needs the whole collection in one place."""

    code = "not_in_cluster"


class ShardsLost(Exception):  # it is caught here, and never shown
    """Some shards of a release do not answer."""

    def __init__(self, numbers: Iterable[int]):
        super().__init__(f"shards {sorted(numbers)} do not answer")
        self.numbers = frozenset(numbers)

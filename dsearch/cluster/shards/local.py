"""The shards of a release in one process, for tests, tools, and a machine's own shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsearch.cluster.release.release import Release
from dsearch.cluster.shards.shard import Shard


class LocalShards:
    """Every shard of a release, opened here.

    Args:
        folder: folder of the release.

    Raises:
        CorruptData, UnsupportedFormat.
    """

    def __init__(self, folder: Path):
        self.release = Release.read(folder)
        self.shards = [Shard.open(folder / entry.name, entry.digest) for entry in self.release.shards]

    def ask(self, method: str, requests: Mapping[int, Any]) -> dict[int, Any]:
        """Call a method of several shards, each with its request; return their answers."""
        return {at: getattr(self.shards[at], method)(argument) for at, argument in requests.items()}

    def close(self) -> None:
        """Close the shards."""
        for shard in self.shards:
            shard.close()

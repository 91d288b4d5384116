"""`ShardActor`: a replica of a shard in a process of its own, placed by Ray.

No code is transferred: the actor is created from names (location, digest), and requests are plain records
(messages.py), packed by packing.py.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsearch.cluster.messages import NotOpen
from dsearch.cluster.packing import pack, unpack
from dsearch.errors import InvalidRequest

if TYPE_CHECKING:
    from dsearch.cluster.shards.shard import Shard

ASKED = ("propose", "pool", "show", "attend", "attend_backward", "gather", "learn", "rerank")


class ShardActor:
    """A copy of one shard.

    It opens the shard at its start. If that fails (the store cannot be reached), the actor stays and `ready`
    tries again, because Ray does not restart an actor whose constructor failed.

    Args:
        uri: location of the release.
        name: name of the shard.
        digest: digest of its manifest.
        cache: folder for copies on this machine.
        threads: threads of native libraries.
    """

    def __init__(self, uri: str, name: str, digest: str, cache: str, threads: int = 1):
        from dsearch.errors import DsearchError
        from dsearch.threads import set_threads

        set_threads(threads)
        self._place = uri, name, digest, Path(cache)
        self._opened: Shard | None = None
        try:
            self._open()
        except (DsearchError, OSError) as error:
            print(f"shard {name} of {uri} does not open yet: {error}")

    def ready(self) -> str:
        """Open the shard if necessary, and return its digest.

        Raises:
            DsearchError, OSError: the shard does not open.
        """
        return self._open().manifest.digest

    def cpu_s(self) -> float:
        """CPU time of this process, in seconds."""
        return time.process_time()

    def tidy_cache(self) -> None:
        """Remove copies of the collection's other releases from this machine, unless a process reads them."""
        from dsearch.cluster.transfer import read_release, tidy_cache

        release = read_release(self._place[0])
        tidy_cache(self._place[3], release.collection, [shard.digest for shard in release.shards])

    def answer(self, method: str, packed: bytes) -> bytes:
        """Call a method of `Shard` with a record; argument and result are packed (packing.py).

        Raises:
            NotOpen: the shard is not open yet.
            DsearchError: error of the shard.
        """
        if method not in ASKED:
            raise InvalidRequest(f"a shard answers {', '.join(ASKED)}; not {method!r}")
        return pack(getattr(self._shard, method)(unpack(packed)))

    @property
    def _shard(self) -> Shard:
        if self._opened is None:
            raise NotOpen(f"shard {self._place[1]} of {self._place[0]} is not open here")
        return self._opened

    def _open(self) -> Shard:
        if self._opened is None:
            from dsearch.cluster.shards.shard import Shard
            from dsearch.cluster.transfer import fetch_shard

            uri, name, digest, cache = self._place
            self._opened = Shard.open(fetch_shard(uri, name, digest, cache), digest)
            self.tidy_cache()
        return self._opened


def start(name: str, place: tuple[str, str, str, str], *, num_cpus: float, node: str) -> Any:
    """Start a copy and return its handle. The actor outlives its creator, and Ray restarts it when it ends.

    Args:
        name: name of the actor.
        place: uri, shard, digest and cache, as for `ShardActor`.
        num_cpus: its logical CPUs.
        node: machine to start on; any other if it is gone.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from dsearch.cluster.connection import NAMESPACE

    actor: Any = ray.remote(ShardActor)
    return actor.options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        max_restarts=-1,  # a lost copy restarts, on another machine if its own is gone
        max_concurrency=1,
        num_cpus=num_cpus,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=True),
    ).remote(*place)

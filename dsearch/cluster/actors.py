"""What runs on the machines of a cluster: shard actors, and the coordinator that says what is live.

Nothing that a caller made travels as code: actors are made of names (a place, a digest) and asked with plain
records (questions.py).
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsearch.cluster.questions import Pooled, Pooling, Proposal, Question, Showing, Shown

COORDINATOR = "dsearch"
READY_S = 300.0
GRACE_S = 30.0  # a replaced release answers so long; no request may take longer
_STATE = b"dsearch:releases"


class ShardActor:
    """A copy of one shard.

    Args:
        uri: where its release lies.
        name: the shard's name in it.
        digest: what the release names it by.
        cache: the folder for what has to be copied to this machine.
        threads: of native libraries.
    """

    def __init__(self, uri: str, name: str, digest: str, cache: str, threads: int = 1):
        from dsearch.threads import set_threads

        set_threads(threads)
        from dsearch.cluster.shard import Shard
        from dsearch.cluster.transfer import fetch_shard

        self._shard = Shard.open(fetch_shard(uri, name, digest, Path(cache)), digest)

    def ready(self) -> str:
        """The digest of what it has."""
        return self._shard.manifest.digest

    def cpu_s(self) -> float:
        """What this process has computed."""
        return time.process_time()

    def propose(self, question: Question) -> Proposal:
        """See `Shard.propose`."""
        return self._shard.propose(question)

    def pool(self, pooling: Pooling) -> Pooled:
        """See `Shard.pool`."""
        return self._shard.pool(pooling)

    def show(self, showing: Showing) -> list[Shown]:
        """See `Shard.show`."""
        return self._shard.show(showing)

    def attend(self, asked: Any) -> Any:
        """See `Shard.attend`."""
        return self._shard.attend(asked)

    def attend_backward(self, upstream: Any) -> Any:
        """See `Shard.attend_backward`."""
        return self._shard.attend_backward(upstream)

    def gather(self, asked: Any) -> Any:
        """See `Shard.gather`."""
        return self._shard.gather(asked)


@dataclass(frozen=True, slots=True)
class Live:
    """A release that answers: where it lies, its digest, and the actors of each shard, copy by copy."""

    collection: str
    uri: str
    digest: str
    generation: int
    actors: list[list[str]]
    number: int


class Coordinator:
    """Starts the actors of releases, and makes a release live when every copy of every shard is ready.

    A release becomes live by one assignment; whoever answers takes it once for a whole request. What is live
    is kept by Ray's control store, so that a coordinator that is started again goes on.
    """

    def __init__(self) -> None:
        from ray.experimental.internal_kv import _internal_kv_get  # pyright: ignore[reportPrivateUsage]

        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        kept: Any = _internal_kv_get(_STATE)
        self._live = {name: Live(**one) for name, one in json.loads(kept or b"{}").items()}

    def live(self) -> dict[str, dict[str, Any]]:
        """The live releases by collection."""
        with self._lock:
            return {name: asdict(one) for name, one in self._live.items()}

    def publish(
        self, uri: str, replicas: int, cache: str, num_cpus: float = 1.0, grace_s: float = GRACE_S
    ) -> dict[str, Any]:
        """Start the shards of the release at `uri`, then let it take the place of its collection's live one.

        Args:
            uri: of a release.
            replicas: copies of each shard.
            cache: a folder on every machine.
            num_cpus: logical ones that a copy takes.
            grace_s: how long the replaced release stays.

        Raises:
            Whatever an actor raises that cannot open its shard; then the one that was live stays.
        """
        import ray

        from dsearch.cluster.transfer import read_release

        with self._publishing:
            release = read_release(uri)
            number = int(time.time() * 1000)
            actors: list[list[str]] = [
                [f"{release.collection}:{number}:{entry.name}:{copy}" for copy in range(replicas)]
                for entry in release.shards
            ]
            nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
            try:
                handles = [
                    _start(name, uri, entry, cache, num_cpus, nodes[(at + copy) % len(nodes)])
                    for at, entry in enumerate(release.shards)
                    for copy, name in enumerate(actors[at])
                ]
                ray.get([handle.ready.remote() for handle in handles], timeout=READY_S)
            except BaseException:
                _kill(actors)
                raise
            live = Live(release.collection, uri, release.digest, release.generation, actors, number)
            with self._lock:
                before = self._live.get(release.collection)
                self._live[release.collection] = live
                self._keep()
            if before is not None:
                retiring = threading.Timer(grace_s, _kill, [before.actors])
                retiring.daemon = True
                retiring.start()
            return asdict(live)

    def withdraw(self) -> None:
        """Stop every shard."""
        with self._publishing, self._lock:
            for one in self._live.values():
                _kill(one.actors)
            self._live.clear()
            self._keep()

    def _keep(self) -> None:
        from ray.experimental.internal_kv import _internal_kv_put  # pyright: ignore[reportPrivateUsage]

        content = {name: asdict(one) for name, one in self._live.items()}
        _internal_kv_put(_STATE, json.dumps(content).encode(), overwrite=True)


def coordinator(*, start: bool = False) -> Any:
    """The cluster's coordinator.

    Args:
        start: whether one is started where there is none.

    Raises:
        Unavailable: there is none.
    """
    import ray

    from dsearch.cluster.connecting import NAMESPACE
    from dsearch.errors import Unavailable

    if start:
        made = ray.remote(Coordinator).options(
            name=COORDINATOR,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=3,
            max_concurrency=16,
            num_cpus=0,
        )
        return made.remote()
    try:
        return ray.get_actor(COORDINATOR, namespace=NAMESPACE)
    except ValueError as error:
        raise Unavailable(
            "nothing of dsearch runs in this Ray cluster; publish a collection with: dsearch cluster start"
        ) from error


def copies_up(live: Live, timeout_s: float = 5.0) -> list[list[bool]]:
    """Which copies of each shard answer now."""
    import ray
    import ray.exceptions

    from dsearch.cluster.connecting import NAMESPACE

    asked: dict[Any, tuple[int, int]] = {}
    up = [[False] * len(names) for names in live.actors]
    for shard, names in enumerate(live.actors):
        for copy, name in enumerate(names):
            try:
                asked[ray.get_actor(name, namespace=NAMESPACE).ready.remote()] = (shard, copy)
            except ValueError:
                continue
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s) if asked else ([], [])
    for reference in done:
        shard, copy = asked[reference]
        try:
            up[shard][copy] = bool(ray.get(reference))
        except ray.exceptions.RayError:
            continue
    return up


def stop_all() -> None:
    """Stop serving, every shard and the coordinator of the cluster that is joined.

    Raises:
        Unavailable: nothing of dsearch runs there.
    """
    import ray
    from ray import serve

    known = coordinator()
    serve.shutdown()
    ray.get(known.withdraw.remote())
    ray.kill(known)


def _start(name: str, uri: str, entry: Any, cache: str, num_cpus: float, node: str) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from dsearch.cluster.connecting import NAMESPACE

    made = ray.remote(ShardActor).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        max_restarts=-1,  # a lost copy comes back by itself, on another machine when its own is gone
        max_concurrency=1,
        num_cpus=num_cpus,
        # Copies of a shard begin on different machines, as far as there are several.
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=True),
    )
    return made.remote(uri, entry.name, entry.digest, cache)


def _kill(actors: list[list[str]]) -> None:
    import ray

    from dsearch.cluster.connecting import NAMESPACE

    for names in actors:
        for name in names:
            try:
                ray.kill(ray.get_actor(name, namespace=NAMESPACE))
            except ValueError:
                continue  # gone already

"""The coordinator of a cluster: it starts the replicas of shards and holds the live release."""

from __future__ import annotations

import json
import math
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from dsearch.errors import amount

COORDINATOR = "dsearch"
READY_S = 300.0
GRACE_S = 30.0  # lifetime of a replaced release; no request may take longer
_END_S = 1.0  # within which a process that was killed has ended
_STATE = b"dsearch:releases"
_RETIRING = b"dsearch:retiring"


@dataclass(frozen=True, slots=True)
class LiveRelease:
    """A live release: its location, digest and, for each shard, the actors of its copies."""

    collection: str
    uri: str
    digest: str
    generation: int
    actors: list[list[str]]
    number: int


class Coordinator:
    """Starts the actors of a release, and makes it live when every copy of every shard is ready.

    A release becomes live by one assignment, and a request uses one release from beginning to end. The live
    releases are stored in Ray's control store, so a restarted coordinator continues with them, and so are the
    actors of replaced ones, which are stopped when no request uses them any more.
    """

    def __init__(self) -> None:
        from ray.experimental.internal_kv import _internal_kv_get  # pyright: ignore[reportPrivateUsage]

        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        stored: Any = _internal_kv_get(_STATE)
        self._live = {name: LiveRelease(**fields) for name, fields in json.loads(stored or b"{}").items()}
        retiring: Any = _internal_kv_get(_RETIRING)
        self._retiring: list[list[list[str]]] = json.loads(retiring or b"[]")
        for actors in self._retiring:
            self._retire_in(GRACE_S, actors)

    def live(self) -> dict[str, dict[str, Any]]:
        """Return the live releases by collection."""
        with self._lock:
            return {name: asdict(live) for name, live in self._live.items()}

    def publish(
        self, uri: str, replicas: int, cache: str, num_cpus: float | None = None, grace_s: float = GRACE_S
    ) -> dict[str, Any]:
        """Start the shards of the release at `uri`, then replace the live release of its collection.

        Args:
            uri: location of the release.
            replicas: copies of each shard.
            cache: folder on every machine.
            num_cpus: logical CPUs of a copy; when None one, or less if fewer are free.
            grace_s: lifetime of the replaced release.

        Raises:
            Unavailable: not all copies are ready in time.
            DsearchError, OSError: a shard does not open; the previous release stays live.
        """
        import ray

        from dsearch.cluster.shards.actor import start
        from dsearch.cluster.transfer import read_release
        from dsearch.errors import Unavailable

        with self._publishing:
            release = read_release(uri)
            number = int(time.time() * 1000)
            actors: list[list[str]] = [
                [f"{release.collection}:{number}:{entry.name}:{copy}" for copy in range(replicas)]
                for entry in release.shards
            ]
            nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
            each = free_share(len(release.shards) * replicas) if num_cpus is None else num_cpus
            try:
                handles = [
                    # Copies of a shard start on different machines if there are several.
                    start(
                        name,
                        (uri, entry.name, entry.digest, cache),
                        num_cpus=each,
                        node=nodes[(at + copy) % len(nodes)],
                    )
                    for at, entry in enumerate(release.shards)
                    for copy, name in enumerate(actors[at])
                ]
                pending = [handle.ready.remote() for handle in handles]
                if ray.wait(pending, num_returns=len(pending), timeout=READY_S)[1]:
                    raise Unavailable(
                        f"{amount(len(release.shards), 'shard')}, {replicas} of each, at {each:g} CPUs "
                        "were not ready "
                        f"in {READY_S:g} s; check for free CPUs (ray status). The previous release stays live"
                    )
                for reference in pending:
                    outcome(reference)
            except BaseException:
                _kill(actors)
                raise
            live = LiveRelease(release.collection, uri, release.digest, release.generation, actors, number)
            with self._lock:
                before = self._live.get(release.collection)
                self._live[release.collection] = live
                if before is not None:
                    self._retiring.append(before.actors)
                self._keep()
            if before is not None:
                self._retire_in(grace_s, before.actors)
            return asdict(live)

    def withdraw(self) -> None:
        """Stop every shard, those of replaced releases too."""
        with self._publishing, self._lock:
            for actors in (*(live.actors for live in self._live.values()), *self._retiring):
                _kill(actors)
            self._live.clear()
            self._retiring.clear()
            self._keep()

    def _retire_in(self, seconds: float, actors: list[list[str]]) -> None:
        timer = threading.Timer(seconds, self._retire, [actors])
        timer.daemon = True
        timer.start()

    def _retire(self, actors: list[list[str]]) -> None:
        _kill(actors)
        with self._lock:
            if actors in self._retiring:  # not withdrawn meanwhile
                self._retiring.remove(actors)
                self._keep()
            live = [live.actors for live in self._live.values()]
        time.sleep(_END_S)
        _tidy_caches(live)

    def _keep(self) -> None:
        from ray.experimental.internal_kv import _internal_kv_put  # pyright: ignore[reportPrivateUsage]

        content = {name: asdict(live) for name, live in self._live.items()}
        _internal_kv_put(_STATE, json.dumps(content).encode(), overwrite=True)
        _internal_kv_put(_RETIRING, json.dumps(self._retiring).encode(), overwrite=True)


def coordinator(*, start: bool = False) -> Any:
    """Return the cluster's coordinator.

    Args:
        start: True to start it if it does not run.

    Raises:
        Unavailable: there is none.
    """
    import ray

    from dsearch.cluster.connection import NAMESPACE
    from dsearch.errors import Command, Unavailable

    if start:
        actor = ray.remote(Coordinator).options(
            name=COORDINATOR,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=3,
            max_concurrency=16,
            num_cpus=0,
        )
        return actor.remote()
    try:
        return ray.get_actor(COORDINATOR, namespace=NAMESPACE)
    except ValueError as error:
        raise Unavailable(
            "nothing of dsearch runs in this Ray cluster; publish a collection", hint=Command("cluster start")
        ) from error


def outcome(reference: Any) -> Any:
    """Return the result of a remote call, or raise its DsearchError as if the call had been local.

    Raises:
        DsearchError, OSError: raised by the remote call.
        Unavailable: the actor has ended.
    """
    import ray
    import ray.exceptions

    from dsearch.errors import DsearchError, Unavailable

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause: Any = error
        while isinstance(cause, ray.exceptions.RayTaskError) and getattr(cause, "cause", None) is not None:
            cause = cause.cause
        raise cause if isinstance(cause, DsearchError | OSError) else error from None
    except ray.exceptions.RayError as error:
        raise Unavailable(f"the cluster did not answer ({type(error).__name__}); try again") from error


def free_share(copies: int) -> float:
    """Logical CPUs for each of `copies` processes: one, or less if fewer are free.

    A fifth of the free CPUs is left for later processes.
    """
    import ray

    free = ray.available_resources().get("CPU", 0.0)
    return max(0.01, min(1.0, math.floor(80 * free / max(copies, 1)) / 100))


def copies_up(live: LiveRelease, timeout_s: float = 5.0) -> list[list[bool]]:
    """Return, for each shard, which replicas respond now."""
    import ray
    import ray.exceptions

    from dsearch.cluster.connection import NAMESPACE

    pending: dict[Any, tuple[int, int]] = {}
    up = [[False] * len(names) for names in live.actors]
    for shard, names in enumerate(live.actors):
        for copy, name in enumerate(names):
            try:
                pending[ray.get_actor(name, namespace=NAMESPACE).ready.remote()] = (shard, copy)
            except ValueError:
                continue
    done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=timeout_s) if pending else ([], [])
    for reference in done:
        shard, copy = pending[reference]
        try:
            up[shard][copy] = bool(ray.get(reference))
        except ray.exceptions.RayError:
            continue
    return up


def stop_all() -> None:
    """Stop serving, every shard, and the coordinator of the joined cluster.

    Raises:
        Unavailable: dsearch does not run there.
    """
    import ray
    from ray import serve

    running = coordinator()
    serve.shutdown()
    ray.get(running.withdraw.remote(), timeout=GRACE_S)
    ray.kill(running)


def _tidy_caches(releases: list[list[list[str]]]) -> None:
    """Let the actors of live releases remove copies of replaced ones from their machines."""
    import ray

    from dsearch.cluster.connection import NAMESPACE

    for name in (name for actors in releases for names in actors for name in names):
        with suppress(ValueError):  # gone already
            ray.get_actor(name, namespace=NAMESPACE).tidy_cache.remote()


def _kill(actors: list[list[str]]) -> None:
    import ray

    from dsearch.cluster.connection import NAMESPACE

    for names in actors:
        for name in names:
            try:
                ray.kill(ray.get_actor(name, namespace=NAMESPACE))
            except ValueError:
                continue  # gone already

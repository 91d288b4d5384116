"""`RayShards`: the shards of a live release, called wherever they run, with failover to another replica.

Requests only read, so they can be repeated. A failed replica is skipped until it reports that it is ready;
Ray restarts it meanwhile.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

from dsearch.cluster.connection import NAMESPACE
from dsearch.cluster.coordinator import LiveRelease
from dsearch.cluster.messages import NotOpen, ShardsLost
from dsearch.cluster.packing import pack, unpack
from dsearch.errors import DsearchError

ANSWER_S = 2.0
_LOOK_AGAIN_S = 0.5


class RayShards:
    """The copies of the shards of a release.

    Args:
        live: entry of the coordinator.
        answer_s: timeout of a copy, after which another one is called.
    """

    def __init__(self, live: LiveRelease, *, answer_s: float = ANSWER_S):
        import ray
        import ray.exceptions

        self._ray: Any = ray
        self._answer_s = answer_s
        self._names = live.actors
        self._handles: dict[tuple[int, int], Any] = {}
        self._down: dict[tuple[int, int], tuple[Any, float]] = {}  # pending `ready` call; start of the outage
        self._turn = itertools.count()

    def ask(self, method: str, requests: Mapping[int, Any]) -> dict[int, Any]:
        """Call a method of several shards at once, each with its request; return their answers.

        Raises:
            ShardsLost: no copy of some of them answers.
            DsearchError: error of a shard.
        """
        once = {id(record): pack(record) for record in requests.values()}  # one request goes to many shards
        packed = {shard: once[id(record)] for shard, record in requests.items()}
        answers: dict[int, Any] = {}
        tried: dict[int, set[int]] = {shard: set() for shard in requests}
        turn = next(self._turn)
        lost: set[int] = set()
        while left := [shard for shard in requests if shard not in answers and shard not in lost]:
            calls: dict[Any, tuple[int, int]] = {}
            for shard in left:
                copy = self._next_copy(shard, tried[shard], turn)
                if copy is None:
                    lost.add(shard)
                    continue
                tried[shard].add(copy)
                reference = self._call((shard, copy), method, packed[shard])
                if reference is not None:
                    calls[reference] = (shard, copy)
            if not calls:
                continue
            done, late = self._ray.wait(list(calls), num_returns=len(calls), timeout=self._answer_s)
            for reference in late:
                self._mark_down(calls[reference])
            for reference in done:
                shard, copy = calls[reference]
                try:
                    answers[shard] = unpack(self._ray.get(reference))
                except self._ray.exceptions.RayTaskError as error:
                    cause = getattr(error, "cause", None)
                    if isinstance(cause, NotOpen):
                        self._mark_down((shard, copy))
                        continue
                    raise cause if isinstance(cause, DsearchError) else error from None
                except self._ray.exceptions.RayError:
                    self._mark_down((shard, copy))
        if lost:
            raise ShardsLost(lost)
        return answers

    def up(self) -> list[list[bool]]:
        """Last known status of the replicas of each shard: True if it responds."""
        return [
            [self._is_up((shard, copy)) for copy in range(len(names))]
            for shard, names in enumerate(self._names)
        ]

    def _call(self, place: tuple[int, int], method: str, packed: bytes) -> Any | None:
        try:
            # Searches share these tables without a lock: look up once, another thread may remove the entry.
            handle = self._handles.get(place)
            if handle is None:
                name = self._names[place[0]][place[1]]
                handle = self._handles[place] = self._ray.get_actor(name, namespace=NAMESPACE)
            return handle.answer.remote(method, packed)
        except (ValueError, self._ray.exceptions.RayError):  # no such actor any more
            self._handles.pop(place, None)
            self._down[place] = (None, time.monotonic())
            return None

    def _next_copy(self, shard: int, tried: set[int], turn: int) -> int | None:
        """Choose a running copy that was not called yet, round robin."""
        copies = len(self._names[shard])
        for step in range(copies):
            copy = (turn + step) % copies
            if copy not in tried and self._is_up((shard, copy)):
                return copy
        return None

    def _is_up(self, place: tuple[int, int]) -> bool:
        state = self._down.get(place)
        if state is None:
            return True
        probe, since = state
        if probe is None:
            if time.monotonic() - since < _LOOK_AGAIN_S:
                return False
            self._mark_down(place)
            return False
        done, _ = self._ray.wait([probe], timeout=0)
        if not done:
            return False
        try:
            self._ray.get(probe)
        except self._ray.exceptions.RayError:
            self._down[place] = (None, time.monotonic())
            return False
        self._down.pop(place, None)
        return True

    def _mark_down(self, place: tuple[int, int]) -> None:
        self._down[place] = (None, time.monotonic())
        handle = self._handles.get(place)
        try:
            if handle is None:
                name = self._names[place[0]][place[1]]
                handle = self._handles[place] = self._ray.get_actor(name, namespace=NAMESPACE)
            self._down[place] = (handle.ready.remote(), time.monotonic())
        except (ValueError, self._ray.exceptions.RayError):
            self._handles.pop(place, None)

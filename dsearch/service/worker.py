"""`Worker`: one thread that computes what the event loop must not, many waiting requests at a time.

    submit → bounded queue → the first job and all that can be computed with it → results

A batch is as large as what waits when the thread becomes free: an idle worker starts at once, a busy one
finds a larger batch each time. There is no timer. When the queue is full a request is refused at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dsearch.service.errors import NotReady, Overloaded

Item = TypeVar("Item", contravariant=True)
Result = TypeVar("Result", covariant=True)
T = TypeVar("T")


class Work(Protocol[Item, Result]):
    """A computation on many items. Jobs whose works are equal are computed together."""

    @property
    def largest_batch(self) -> int:
        """The most items that it takes at once."""
        ...

    def __call__(self, items: Sequence[Item]) -> Sequence[Result]:
        """One result for each item, in their order."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Once:
    """Work that is never computed together with other work."""

    compute: Callable[[], Any]
    largest_batch: int = 1

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        return [self.compute() for _ in items]


@dataclass(slots=True, eq=False)
class _Job:
    work: Work[Any, Any]
    item: Any
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    result: Any = None
    error: BaseException | None = None


class Worker:
    """A thread with a bounded queue of jobs.

    Args:
        name: of the thread.
        waiting: jobs that may wait; one more is refused.
    """

    def __init__(self, name: str, *, waiting: int):
        self.name = name
        self.waiting = waiting
        self._queue: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def start(self) -> None:
        """Start the thread; once."""
        self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more jobs, finish those that wait, end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether jobs are taken and computed."""
        return self._thread is not None and self._thread.is_alive() and not self._stopping

    async def submit(self, work: Work[Item, Result], item: Item) -> Result:
        """The result of `work` for `item`, computed together with equal work that waits.

        A caller that is cancelled while its job waits costs nothing.

        Raises:
            Overloaded: the queue is full.
            NotReady: the worker is not running.
            Whatever the work raises for this item; the error of one item never reaches another.
        """
        loop = asyncio.get_running_loop()
        job = _Job(work, item, loop.create_future(), loop)
        with self._changed:
            if not self.alive:
                raise NotReady(f"the service is not running its {self.name} worker; try again in a moment")
            if len(self._queue) >= self.waiting:
                raise Overloaded(
                    f"{len(self._queue)} {self.name} requests wait already, the most that may; "
                    f"try again after the seconds in Retry-After"
                )
            self._queue.append(job)
            self._changed.notify()
        return await job.answer

    async def run(self, compute: Callable[[], T]) -> T:
        """The result of `compute()`, in its turn; raises as `submit` does."""
        return await self.submit(_Once(compute), None)

    # ---- in the thread

    def _work(self) -> None:
        while batch := self._next_batch():
            _compute(batch)
            _deliver(batch)

    def _next_batch(self) -> list[_Job]:
        """The job that has waited longest and those that go with it; empty when it is time to end."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                if not self._queue:
                    return []
                batch: list[_Job] = []
                others: deque[_Job] = deque()
                for job in self._queue:
                    if job.answer.cancelled():
                        continue
                    first = batch[0].work if batch else job.work
                    together = job.work == first and len(batch) < first.largest_batch
                    (batch if together else others).append(job)
                self._queue = others
                if batch:
                    return batch


def _compute(batch: list[_Job]) -> None:
    try:
        results = batch[0].work([job.item for job in batch])
        for job, result in zip(batch, results, strict=True):
            job.result = result
    except BaseException as error:
        if len(batch) == 1:
            batch[0].error = error
            return
        # Somebody's item is bad: each for itself, so that it is nobody else's error.
        for job in batch:
            _compute([job])


def _deliver(batch: list[_Job]) -> None:
    """Hand the results over, one wake-up of each event loop for the whole batch."""
    for loop in {job.loop for job in batch}:
        mine = [job for job in batch if job.loop is loop]
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_answer, mine)


def _answer(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.answer.done():
            continue
        if job.error is not None:
            job.answer.set_exception(job.error)
        else:
            job.answer.set_result(job.result)

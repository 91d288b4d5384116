"""`Worker`: one thread for work that must not block the event loop; it computes requests in batches.

    submit → bounded queue → the first job and all that can be computed with it → results

A batch consists of the jobs that wait when the thread becomes free. An idle worker starts when the event loop
has handed over all requests that arrived together; a busy one finds a larger batch each time. There is no
timer. When the queue is full, by jobs or by characters, a request is rejected at once. Jobs whose request has
ended, by its deadline or its client, are dropped before they cost anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dsearch.errors import amount
from dsearch.service import deadline
from dsearch.service.errors import NotReady, Overloaded
from dsearch.service.telemetry import Metrics

UNBOUNDED = 1 << 62
_ALWAYS_WAITING = 8
_LATELY = 8

Item = TypeVar("Item", contravariant=True)
Result = TypeVar("Result", covariant=True)
T = TypeVar("T")


class BatchWork(Protocol[Item, Result]):
    """A computation on many items. Jobs whose works are equal are computed together."""

    @property
    def largest_batch(self) -> int:
        """Maximum number of items of a batch."""
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
    work: BatchWork[Any, Any]
    item: Any
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    characters: int
    submitted: float
    begun: bool = False
    result: Any = None
    error: BaseException | None = None


class Worker:
    """A thread with a bounded queue of jobs.

    Args:
        name: name of the thread.
        waiting: maximum number of waiting jobs; one more is refused.
        waiting_characters: maximum size of all waiting jobs. A larger job is taken when nothing waits.
        waiting_s: longest waiting time, estimated by the pace of the last batches; a job that would wait
            longer is refused, unless fewer than eight wait. None: no limit.
        finishes: True if a started job is finished and answered whatever its deadline: a write must not be
            answered with an error and be stored all the same.
        most_together: returns the maximum number of jobs of a batch now; None: that of their work.
        observer: counts batches and refusals; called in the worker's thread, or where a job is refused.

    Attributes:
        pace_s: seconds that a job took in the quickest of the last eight batches; 0 before the eighth. A slow
            start or a busy neighbour is no overload.
    """

    def __init__(
        self,
        name: str,
        *,
        waiting: int,
        waiting_characters: int = UNBOUNDED,
        waiting_s: float | None = None,
        finishes: bool = False,
        most_together: Callable[[], int] | None = None,
        observer: Metrics | None = None,
    ):
        self.name = name
        self.waiting = waiting
        self.waiting_characters = waiting_characters
        self.waiting_s = waiting_s
        self._finishes = finishes
        self.most_together = most_together or (lambda: UNBOUNDED)
        self._paces: deque[float] = deque(maxlen=_LATELY)
        self.pace_s = 0.0
        self._observer = observer
        self._queue: deque[_Job] = deque()
        self._characters = 0
        self._lock = threading.Lock()
        # What a condition is made of, without a new lock for each wait: taken while there is nothing to hear.
        self._bell = threading.Lock()
        self._bell.acquire()
        self._waits = False
        self._thread: threading.Thread | None = None
        self._stopping = False

    def start(self) -> None:
        """Start the thread; to be called once."""
        self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Refuse new jobs, finish the waiting ones, and end the thread."""
        with self._lock:
            self._stopping = True
            self._ring()
        if self._thread is not None:
            self._thread.join()

    @property
    def alive(self) -> bool:
        """True if jobs are accepted and computed."""
        return self._thread is not None and self._thread.is_alive() and not self._stopping

    @property
    def depth(self) -> int:
        """Number of waiting jobs."""
        return len(self._queue)

    async def submit(self, work: BatchWork[Item, Result], item: Item, *, characters: int = 0) -> Result:
        """The result of `work` for `item`, computed together with equal work that waits.

        A caller that is cancelled while its job waits, or whose deadline passes, costs nothing.

        Args:
            work: the computation.
            item: what it is applied to.
            characters: the size of the item, counted against `waiting_characters`.

        Raises:
            Overloaded: the queue is full.
            NotReady: the worker is not running.
            DeadlinePassed: the request's time is over; see `deadline.py`.
            Whatever the work raises for this item; the error of one item never reaches another.
        """
        loop = asyncio.get_running_loop()
        job = _Job(work, item, loop.create_future(), loop, characters, time.perf_counter())
        with self._lock:
            if not self.alive:
                raise NotReady(f"the service is not running its {self.name} worker; try again in a moment")
            self._require_room(characters)
            self._queue.append(job)
            self._characters += characters
            if self._waits:
                # Not before all that arrived with it has been submitted: one batch instead of two.
                loop.call_soon(self._ring_alone)
        ends = deadline.present()
        timer = None if ends is None else loop.call_at(ends, self._expire, job)
        try:
            return await job.answer
        except asyncio.CancelledError:
            self._count(job, "client gone")
            raise
        finally:
            if timer is not None:
                timer.cancel()

    async def run(self, compute: Callable[[], T], *, characters: int = 0) -> T:
        """The result of `compute()`, in its turn; raises as `submit` does."""
        return await self.submit(_Once(compute), None, characters=characters)

    def _require_room(self, characters: int) -> None:
        if self._fits(characters):
            return
        for job in [job for job in self._queue if job.answer.done()]:  # cancelled or timed out
            self._queue.remove(job)
            self._characters -= job.characters
        if self._fits(characters):
            return
        waiting = len(self._queue)
        if self._observer is not None:
            self._observer.rejected(self.name, "overloaded")
        what = f"{waiting} {self.name} requests wait already"
        if waiting < self.waiting and self._too_slow(waiting):
            what += ", and the last of them will be begun late"
        elif waiting < self.waiting:
            what += f", of {amount(self._characters, 'character')}"
        raise Overloaded(f"{what}, the most that may; try again after the seconds in Retry-After")

    def _fits(self, characters: int) -> bool:
        waiting = len(self._queue)
        if waiting >= self.waiting or self._too_slow(waiting):
            return False
        return not waiting or self._characters + characters <= self.waiting_characters

    def _too_slow(self, waiting: int) -> bool:
        """Return True if one more job would wait too long."""
        return (
            self.waiting_s is not None
            and waiting >= _ALWAYS_WAITING
            and waiting * self.pace_s > self.waiting_s
        )

    def _expire(self, job: _Job) -> None:
        """Answer a job after its deadline with an error, unless it is one that is finished all the same."""
        with self._lock:
            if job.answer.done() or (job.begun and self._finishes):
                return
            written = "nothing of it was written" if self._finishes else ""
            job.answer.set_exception(deadline.passed(self.name, written))
        self._count(job, "deadline")

    def _count(self, job: _Job, reason: str) -> None:
        """Count a job that was given up, unless it is one that is finished all the same."""
        with self._lock:
            finished = job.begun and self._finishes
        if not finished and self._observer is not None:
            self._observer.rejected(self.name, reason)

    def _ring(self) -> None:
        """Wake the thread if it waits; the caller holds the lock."""
        if self._waits:
            self._waits = False
            self._bell.release()

    def _ring_alone(self) -> None:
        with self._lock:
            self._ring()

    # ---- in the thread

    def _work(self) -> None:
        while batch := self._next_batch():
            started = time.perf_counter()
            _compute(batch)
            took_s = time.perf_counter() - started
            if not isinstance(batch[0].work, _Once):
                self._paces.append(took_s / len(batch))
                if len(self._paces) == _LATELY:
                    self.pace_s = min(self._paces)
            if self._observer is not None:
                self._observer.batch(self.name, [started - job.submitted for job in batch], took_s)
            _deliver(batch)  # last, so that woken threads find the interpreter free

    def _next_batch(self) -> list[_Job]:
        """Wait for the next batch: the oldest job and those of equal work; empty if the thread has to end."""
        while True:
            with self._lock:
                if batch := self._taken():
                    return batch
                if self._stopping:
                    return []
                self._waits = True
            self._bell.acquire()

    def _taken(self) -> list[_Job]:
        """Take the next batch from the queue; empty if no job waits."""
        batch: list[_Job] = []
        others: deque[_Job] = deque()
        most = self.most_together()
        for job in self._queue:
            if job.answer.done():  # given up
                self._characters -= job.characters
                continue
            first = batch[0].work if batch else job.work
            together = not batch or (job.work == first and len(batch) < min(first.largest_batch, most))
            (batch if together else others).append(job)
        self._queue = others
        for job in batch:
            job.begun = True
            self._characters -= job.characters
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
        # One item is bad: compute each alone, so that the others do not fail with it.
        for job in batch:
            _compute([job])


def _deliver(batch: list[_Job]) -> None:
    """Deliver the results of a batch, waking each event loop once."""
    for loop in {job.loop for job in batch}:
        mine = [job for job in batch if job.loop is loop]
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(_answer, mine)


def _answer(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.answer.done():
            continue
        if job.error is not None:
            job.answer.set_exception(job.error)
        else:
            job.answer.set_result(job.result)

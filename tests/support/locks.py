"""A lock that reports contention, to test that work waits for it without a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from support.patience import LATEST_S


class WatchedLock:
    """A `threading.Lock` that sets `settled` when a thread finds it taken and is about to wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.settled = threading.Event()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As of `threading.Lock`."""
        if self._lock.acquire(blocking=False):
            return True
        self.settled.set()
        return blocking and self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        """As of `threading.Lock`."""
        self._lock.release()

    def locked(self) -> bool:
        """As of `threading.Lock`."""
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def waiting(lock: WatchedLock, work: Callable[[], object]) -> Iterator[None]:
    """Hold `lock` and start `work` in a thread; run the block when `work` waits for the lock.

    Work that ends without waiting fails the test. After the block the lock is free, and `work` ends.
    """
    errors: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()
            lock.settled.set()

    thread = threading.Thread(target=run)
    with lock:
        lock.settled.clear()
        thread.start()
        assert lock.settled.wait(LATEST_S), "the work neither ended nor came to the lock"
        assert not ended.is_set(), f"the work did not wait for the lock; it raised {errors}"
        yield
    thread.join(LATEST_S)
    assert not thread.is_alive(), "the work goes on though the lock is free"
    assert not errors, errors

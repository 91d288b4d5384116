"""`PacedSelector`: while searches are rejected, the event loop handles arrivals in rounds, not one by one.

A rejection takes some forty microseconds in an idle server, and several times that if it interrupts an
encoder: the thread is switched to, finds the caches filled with other data, and is switched from again.
Handling all arrivals of some milliseconds together pays that cost once.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import time
from collections.abc import Callable

ROUND_S = 0.01  # below a batch of any encoder, so that what computes does not wait for what hands over


class PacedSelector(selectors.DefaultSelector):
    """A selector that looks again when a round is over; until then whoever would wait rests.

    Args:
        crowded: whether to look in rounds now.
        sleep: waits so many seconds.
        clock: seconds.
    """

    def __init__(
        self,
        crowded: Callable[[], bool],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__()
        self._crowded = crowded
        self._sleep = sleep
        self._clock = clock
        self._looked = -ROUND_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As a selector's; a timer that is due earlier than the round ends, ends it."""
        if not self._crowded():
            return super().select(timeout)
        rest = self._looked + ROUND_S - self._clock()
        if rest > 0 and timeout is not None and timeout <= 0:
            return []  # the loop has something to do, of which new arrivals are no part
        if timeout is not None:
            rest = min(rest, timeout)
        if rest > 0:
            self._sleep(rest)
            if timeout is not None:
                timeout -= rest
        events = super().select(timeout)
        self._looked = self._clock()
        return events


def event_loop(crowded: Callable[[], bool]) -> asyncio.AbstractEventLoop:
    """A new event loop that looks in rounds while `crowded`; the usual one where that has no selector."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    return asyncio.SelectorEventLoop(PacedSelector(crowded))

"""`Lag`: how late the event loop is.

A server can be overloaded before any request reaches a queue: by reading, routing and writing more of them
than one thread can. A timer that fires late tells. A share of the new requests is then refused, where that
costs least: the larger the later it is, but never all of them, so that what the thread can do it does.
"""

from __future__ import annotations

import asyncio
import contextlib

TOLERATED_S = 0.3
FULL_S = 1.5
MOST_REFUSED = 0.9
_LOOK_EVERY_S = 0.02
_FADING = 0.7


class Lag:
    """Measures one event loop, from `start` to `stop`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._owed = 0.0
        self._task: asyncio.Task[None] | None = None

    def refuses(self) -> bool:
        """Whether to refuse the request that is asked about: of many in a row the share that is due."""
        late = (self.seconds - TOLERATED_S) / (FULL_S - TOLERATED_S)
        if late <= 0:
            self._owed = 0.0
            return False
        self._owed += min(late, MOST_REFUSED)
        if self._owed < 1:
            return False
        self._owed -= 1
        return True

    def start(self) -> None:
        """Begin; in the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._measure())

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self.seconds = 0.0

    async def _measure(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + _LOOK_EVERY_S
            await asyncio.sleep(_LOOK_EVERY_S)
            self.seconds = max(clock() - due, _FADING * self.seconds)

"""Content that is the same for everybody: rendered once, in a thread, by the first request for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")


class RenderedOnce(Generic[T]):
    """Content that is rendered when it is first needed, and kept.

    The event loop renders nothing, and requests that come meanwhile hold no thread.

    Args:
        render: returns the content; called in a thread, once.
    """

    def __init__(self, render: Callable[[], T]):
        self._render = render
        self._kept: list[T] = []
        self._turn = asyncio.Lock()
        self._rendering = threading.Lock()

    async def content(self) -> T:
        """The content."""
        if not self._kept:
            async with self._turn:
                await run_in_threadpool(self._keep)
        return self._kept[0]

    def _keep(self) -> None:
        with self._rendering:  # the thread of a request that went away goes on
            if not self._kept:
                self._kept.append(self._render())

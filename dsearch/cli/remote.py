"""Writes and searches through the server of a home: it does what the command would have done."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsearch.cli.session import ProgressBars, say
from dsearch.errors import AccessDenied, Conflict, HomeLocked, Unavailable
from dsearch.types import Document, Progress

if TYPE_CHECKING:
    from dsearch.client import Client
    from dsearch.results import CollectionInfo, Task, WriteResult

LONGEST_S = 7 * 24 * 3600.0  # a task goes on as long as it takes
HOLDER_NAME = "LOCK.holder"  # as engine/home.py writes it, which would load the engine
_TELL_EVERY, _TELL_EVERY_S = 100, 1.0  # documents, seconds


@contextmanager
def server_of(locked: HomeLocked, own: Mapping[str, object] | None = None) -> Iterator[Client]:
    """A client of the server that holds the lock.

    Args:
        locked: names the server.
        own: options of an encoder, a device or threads, which the server has itself: those given are named.

    Raises:
        HomeLocked: what holds it is no server, or one that cannot be asked from this machine.
    """
    if locked.url is None:
        raise locked
    from dsearch.client import Client
    from dsearch.config import load_settings

    key = load_settings().api_key
    say(f"the server at {locked.url} runs on this home and does this")
    if names := [f"--{name}" for name, value in (own or {}).items() if value is not None]:
        say(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not used: it has settings of its own")
    with Client(locked.url, api_key=None if key is None else key.get_secret_value()) as client:
        yield client


@contextmanager
def reader_of(home: Path | None, own: Mapping[str, object] | None = None) -> Iterator[Client | None]:
    """A client of the server that runs on this home, which has everything loaded; None without one.

    Args:
        home: as it was given.
        own: options of an encoder, a device or threads: with any of them this process answers itself.
    """
    from dsearch.config import load_settings

    settings = load_settings(home=home)
    url = None if any(value is not None for value in (own or {}).values()) else serving_url(settings.home)
    if url is None:
        yield None
        return
    from dsearch.client import Client

    key = None if settings.api_key is None else settings.api_key.get_secret_value()
    with Client(url, api_key=key, retries=0) as client:
        try:
            client.ready()
            client.collections()  # open to this key
        except (Unavailable, AccessDenied):  # the files can be read without it
            yield None
            return
        yield client


def serving_url(home: Path) -> str | None:
    """The address of the server that holds the lock of a home on this machine; None without one."""
    try:
        holder = json.loads((home / HOLDER_NAME).read_text())
        os.kill(int(holder["pid"]), 0)
        own = holder["host"] == socket.gethostname()
        return str(holder["url"]) if own and holder["url"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def stays_here(locked: HomeLocked, why: str) -> HomeLocked:
    """The error of a command that no server does, with the reason and what to do; for others as it was."""
    if locked.url is None:
        return locked
    return HomeLocked(f"the server at {locked.url} runs on this home; {why}")


def is_there(client: Client, name: str) -> bool:
    """Return True if a server has a collection of this name or alias."""
    return name in (*[info.name for info in client.collections()], *client.aliases())


def index_by_server(
    client: Client, collection: str, documents: Iterable[Document], creation: dict[str, Any]
) -> tuple[CollectionInfo, WriteResult]:
    """Store documents, in a collection that is made when it is not there.

    Args:
        client: of the server.
        collection: its name.
        documents: read as they are sent.
        creation: options of a new collection, as for `Client.create_collection`.

    Raises:
        Conflict: the collection is there, with other options than these.
    """
    if not is_there(client, collection) or any(value is not None for value in creation.values()):
        client.create_collection(collection, **creation)  # one that is there stays, and says what differs
    with ProgressBars() as on_progress:
        written = client.upsert(collection, _counted(documents, on_progress))
    return client.collection(collection), written


def refresh_by_server(client: Client, collection: str, **keys: Any) -> dict[str, Any]:
    """Rebuild the index: its generation, the model that answers, how its keys are kept.

    Args:
        client: of the server.
        collection: its name.
        keys: as for `Client.refresh`.

    Raises:
        Conflict: it did not come to an end; the message says why.
    """
    return ended_task(client, client.refresh(collection, **keys), f"refresh of {collection}")


def compact_by_server(client: Client, collection: str) -> dict[str, Any]:
    """Compact: `Compaction` as JSON, with `complete`.

    Raises:
        Conflict: it did not come to an end; the message says why.
    """
    return ended_task(client, client.compact(collection), f"compaction of {collection}")


def ended_task(client: Client, task: Task, called: str, unit: str = "documents") -> dict[str, Any]:
    """The result of a task, whose progress is shown; Ctrl-C cancels it.

    Args:
        client: of the server.
        task: as it was taken on.
        called: what it does, in words.
        unit: of its progress.

    Raises:
        Conflict: it did not come to an end; the message says why.
    """
    from dsearch.client.wire import text_and_hint

    with ProgressBars(unit) as on_progress:
        last: Progress | None = None

        def show_progress(task: Task) -> None:
            nonlocal last
            if task.progress is None:
                return
            names = ("stage", "done", "total", "elapsed_s")
            left_s, elapsed_s = task.progress["eta_s"], task.progress["elapsed_s"]
            share = elapsed_s / (elapsed_s + left_s) if left_s is not None and elapsed_s else None
            now = Progress(**{name: task.progress[name] for name in names}, share=share)
            if now != last:  # polled more often than it changes
                last = now
                on_progress(now)

        try:
            task = client.wait_for_task(task.id, timeout_s=LONGEST_S, on_progress=show_progress)
        except KeyboardInterrupt:
            client.cancel_task(task.id)
            raise
    if task.state != "done" or task.result is None:
        state = {"failed": "has failed", "cancelled": "was cancelled"}.get(task.state, f"is {task.state}")
        text, hint = f"the server's {called} {state}", None
        if task.problem is not None:
            why, hint = text_and_hint(task.problem)
            text = f"{text}: {why}"
        raise Conflict(text, hint=hint)
    return task.result


def _counted(documents: Iterable[Document], on_progress: Callable[[Progress], None]) -> Iterator[Document]:
    """Tell the progress from the first second on, and whenever a batch was answered or some were read."""
    started = last_s = time.monotonic()
    on_progress(Progress("send", 0, 0, 0.0))
    number = 0
    for number, document in enumerate(documents, start=1):
        now_s = time.monotonic()
        if number % _TELL_EVERY == 0 or now_s - last_s >= _TELL_EVERY_S:
            last_s = now_s
            on_progress(Progress("send", number, 0, now_s - started))
        yield document
    on_progress(Progress("server", number, 0, time.monotonic() - started))

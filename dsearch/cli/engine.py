"""The engine of a command: one of this process, or the server of the home. Both have the calls of `Client`.

    with writing(home) as engine:
        built = finished(engine, engine.refresh(collection))

`in_process` is for what only an engine of this process does.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from dsearch.cli.session import ProgressBars, opened_engine, say
from dsearch.errors import AccessDenied, Conflict, HomeLocked, Unavailable
from dsearch.types import Progress

if TYPE_CHECKING:
    from dsearch.client import Client, LocalEngine
    from dsearch.results import Task
    from dsearch.training import Headroom, Observer

    Engine: TypeAlias = Client | LocalEngine

LONGEST_S = 7 * 24 * 3600.0  # a task goes on as long as it takes
HOLDER_NAME = "LOCK.holder"  # as engine/home.py writes it, which would load the engine
WORK = {"train": "training", "tune": "tuning", "compact": "compaction", "migrate": "migration"}


@contextmanager
def writing(
    home: Path | None,
    own: Mapping[str, Any] | None = None,
    *,
    stays: str | None = None,
    learns: bool = False,
    next_encoder: str | None = None,
) -> Iterator[Engine]:
    """An engine that writes to the home: the server that holds its lock, if one does.

    Args:
        home: as it was given.
        own: options of an encoder, a device or threads, which a server has itself: those given are named.
        stays: reason why no server does this, and what to do; None where it does.
        learns: whether a training or a tuning is run, whose remarks are shown.
        next_encoder: encoder of a migration.

    Raises:
        HomeLocked: another process writes, and is no server that can be asked from this machine; or `stays`.
    """
    with ExitStack() as stack:
        url = None
        try:
            local = stack.enter_context(
                local_engine(home, own, readonly=False, learns=learns, stays=stays, next_encoder=next_encoder)
            )
        except HomeLocked as locked:
            if locked.url is None:
                raise
            url = locked.url
        else:
            yield local
        if url is not None:
            say(f"the server at {url} runs on this home and does this")
            if names := [f"--{name}" for name, value in (own or {}).items() if value is not None]:
                say(
                    f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not used: "
                    "it has settings of its own"
                )
            yield stack.enter_context(client_of(url))


@contextmanager
def reading(home: Path | None, own: Mapping[str, Any] | None = None) -> Iterator[Engine]:
    """An engine that reads the home: the server that runs on it, which has everything loaded, if one does.

    Args:
        home: as it was given.
        own: options of an encoder, a device or threads: with any of them this process answers itself.
    """
    from dsearch.config import load_settings

    with ExitStack() as stack:
        url = None
        if all(value is None for value in (own or {}).values()):
            url = serving_url(load_settings(home=home).home)
        if url is not None:
            client = stack.enter_context(client_of(url, retries=0))
            try:
                client.ready()
                client.collections()  # open to this key
            except (Unavailable, AccessDenied):  # the files can be read without it
                url = None
            else:
                yield client
        if url is None:
            yield stack.enter_context(local_engine(home, own, readonly=True))


@contextmanager
def local_engine(
    home: Path | None,
    own: Mapping[str, Any] | None = None,
    *,
    readonly: bool,
    learns: bool = False,
    **opening: Any,
) -> Iterator[LocalEngine]:
    """An engine of this process, whose progress is shown; arguments as for `opened_engine`."""
    with (
        opened_engine(home, readonly=readonly, **(own or {}), **opening) as (engine, settings),
        ProgressBars() as on_progress,
    ):
        from dsearch.client import LocalEngine

        # An `Observer` would load the training for every command.
        observer: Any = terminal_observer(on_progress) if learns else SimpleNamespace(progress=on_progress)
        yield LocalEngine(engine, observer=observer, device=settings.device)


def client_of(url: str, **options: Any) -> Client:
    """A client with the key of the settings."""
    from dsearch.client import Client
    from dsearch.config import load_settings

    key = load_settings().api_key
    return Client(url, api_key=None if key is None else key.get_secret_value(), **options)


def serving_url(home: Path) -> str | None:
    """The address of the server that holds the lock of a home on this machine; None without one."""
    try:
        holder = json.loads((home / HOLDER_NAME).read_text())
        os.kill(int(holder["pid"]), 0)
        own = holder["host"] == socket.gethostname()
        return str(holder["url"]) if own and holder["url"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def finished(engine: Engine, task: Task) -> dict[str, Any]:
    """The result of a task. That of a server is waited for: its progress is shown, and Ctrl-C cancels it.

    Raises:
        Conflict: it did not come to an end; the message says why.
    """
    with ProgressBars() as on_progress:
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
            task = engine.wait_for_task(task.id, timeout_s=LONGEST_S, on_progress=show_progress)
        except KeyboardInterrupt:
            engine.cancel_task(task.id)
            raise
    if task.state != "done" or task.result is None:
        raise _failure(task, by_server=in_process(engine) is None)
    return task.result


def in_process(engine: Engine) -> LocalEngine | None:
    """Return an engine of this process, for what only such a one does; None for a server."""
    from dsearch.client import LocalEngine

    return engine if isinstance(engine, LocalEngine) else None


def _failure(task: Task, *, by_server: bool) -> Conflict:
    from dsearch.client.wire import text_and_hint

    state = {"failed": "has failed", "cancelled": "was cancelled"}.get(task.state, f"is {task.state}")
    whose = "the server's " if by_server else ""
    text = f"{whose}{WORK.get(task.kind, task.kind)} of {task.collection} {state}"
    if task.problem is None:
        return Conflict(text)
    why, hint = text_and_hint(task.problem)
    return Conflict(f"{text}: {why}" if by_server else why, hint=hint)


def is_there(engine: Engine, name: str) -> bool:
    """Return True for a collection of this name or alias."""
    local = in_process(engine)
    names = [info.name for info in engine.collections()] if local is None else local.engine.names()
    return name in (*names, *engine.aliases())


def terminal_observer(
    on_progress: Callable[[Progress], None], cancelled: Callable[[], bool] = lambda: False
) -> Observer:
    """Show the progress of a job at the terminal; `cancelled` stops it."""
    from dsearch.training import Observer

    class Terminal(Observer):
        def remark(self, text: str) -> None:
            say(text)

        def headroom(self, room: Headroom) -> None:
            say(room.to_text())

        def progress(self, progress: Progress) -> None:
            on_progress(progress)

        def cancelled(self) -> bool:
            return stops()

    stops = cancelled
    return Terminal()

"""`LocalEngine`: the calls of the clients on an engine in this process, with the same answers.

    with dsearch.open("index") as engine:
        print(engine.search("papers", "attention as retrieval").hits)

A program can be written against a folder and deployed against a server. A request is handed over as it is:
the modules of this folder answer it by the engine, each registered by `handles`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from dsearch.client.calls import Calls
from dsearch.encoder import EncoderSource
from dsearch.engine import SearchEngine, calls
from dsearch.engine.feedback import Episodes
from dsearch.errors import InvalidRequest
from dsearch.operations import Call

if TYPE_CHECKING:
    from dsearch.encoder import TextEncoder
    from dsearch.results import Task
    from dsearch.training import Observer

T = TypeVar("T")


def open(
    home: Path | str,
    *,
    readonly: bool = False,
    encoder: Callable[[], TextEncoder] | None = None,
    observer: Observer | None = None,
    device: str | None = None,
) -> LocalEngine:
    """Open the engine of a home, with the methods of `Client`.

    Args:
        home: folder of the collections.
        readonly: open it beside another process that writes.
        encoder: loads the encoder; when None the one of the settings.
        observer: receives the progress of tasks; may stop training, tuning and evaluation.
        device: runs training: "cpu", "cuda"; when None that of the settings.

    Settings (variables DSEARCH_*, dsearch.toml) are those of the command line: encoder, next_encoder,
    backend, dtype, device, cache, query_cache_bytes; and threads, if that is set.

    Raises:
        HomeLocked: another process writes to this home; open it readonly, or use a client of its server.
        InvalidRequest: the address of a server, or a wrong setting.
    """
    if "://" in str(home) or str(home).startswith(("http:", "https:")):  # Path makes one slash of two
        raise InvalidRequest(
            f"{str(home)!r} is an address, not a folder; use dsearch.Client, which has the same methods"
        )
    from dsearch.config import load_settings
    from dsearch.threads import set_threads

    settings = load_settings(home=Path(home))
    if settings.threads is not None:
        set_threads(settings.threads)
    following = settings.next_encoder
    engine = SearchEngine(
        home,
        readonly=readonly,
        encoder=encoder or EncoderSource.of(settings),
        next_encoder=None if following is None else EncoderSource.of(settings, name=following),
        query_cache_bytes=settings.query_cache_bytes,
    )
    return LocalEngine(engine, observer=observer, device=device or settings.device)


class LocalEngine(Calls):
    """The calls of `Client`, without a server.

    Args:
        engine: closed with this.
        observer: receives the progress of tasks; may stop training, tuning and evaluation.
        device: runs training.
    """

    def __init__(self, engine: SearchEngine, *, observer: Observer | None = None, device: str = "cpu"):
        self.engine, self.observer, self.device = engine, observer, device
        self.episodes = Episodes()
        self.ended_tasks: dict[str, Task] = {}

    def run(self, call: Call[T], /) -> T:
        """Carry out a call and return its result."""
        call.check()
        handler = HANDLERS.get(type(call))
        if handler is None:
            return calls.answer(self.engine.collection(calls.collection_of(call)), call)
        return handler(self, call)

    def close(self) -> None:
        """Close the engine; safe to call twice."""
        self.engine.close()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


C = TypeVar("C", bound=Call[Any])
Handler = Callable[[Any, C], Any]  # of a LocalEngine and a request

HANDLERS: dict[type[Call[Any]], Handler[Any]] = {}


def handles(kind: type[C]) -> Callable[[Handler[C]], Handler[C]]:
    """Register a function as what handles the calls of this kind."""

    def register(handler: Handler[C]) -> Handler[C]:
        HANDLERS[kind] = handler
        return handler

    return register

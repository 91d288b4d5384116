"""The session of a command: settings, thread budget, engine, progress bars, messages.

Messages name commands to run next. If the command was given `--home`, those commands include it, because they
would otherwise use another home.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsearch.errors import Command, HomeLocked
from dsearch.types import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from dsearch.config import Settings
    from dsearch.engine import SearchEngine
    from dsearch.errors import DsearchError
    from dsearch.service.tasks.jobs import OpenEngine


STAGES = {
    "read": "reading",
    "encode": "encoding",
    "embeddings": "writing embeddings",
    "keys": "building keys",
    "keyword": "building keywords",
    "digests": "checking",
    "validate": "training, some held out",
    "train": "training on all",
    "settings": "trying settings",
    "search": "searching",
    "questions": "writing questions",
    "send": "sending",
    "server": "the server encodes",
    "purge": "writing the database anew",
}


UNITS = {
    "digests": "files",
    "validate": "steps",
    "train": "steps",
    "settings": "settings",
    "search": "queries",
}
"""What a stage counts, where it is not documents."""


_home: ContextVar[str | None] = ContextVar("home", default=None)


def remember_home(home: Path | None) -> None:
    """Let commands in messages name this home from now on; none when None."""
    _home.set(None if home is None else str(home))


def home_option(home: Path | None) -> Path | None:
    """Callback of `--home`, which a group and its command both have: what was given counts for messages."""
    if home is not None:
        remember_home(home)
    return home


def command_line(name: str, *arguments: str) -> str:
    """A command that takes `--home`, as it has to be typed here."""
    return Command(name, arguments).line(_home.get())


def with_home(text: str, *commands: str) -> str:
    """A text that names commands without a home, as they have to be typed here."""
    for name in commands:
        text = text.replace(str(Command(name)), command_line(name))
    return text


def error_text(error: DsearchError) -> str:
    """The text of an error, its command as it has to be typed here; of a server's route the command too."""
    home = _home.get()

    def command(match: re.Match[str]) -> str:
        return Command("index", ("SOURCE", "-c", match[1])).line(home)

    return re.sub(r"PUT /v1/collections/([\w.-]+)", command, error.text(home))


def say(message: str) -> None:
    """Tell the person at the terminal something that is not the answer."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def opened_engine(
    home: Path | None,
    *,
    readonly: bool,
    encoder: str | None = None,
    device: str | None = None,
    backend: str | None = None,
    threads: int | None = None,
    next_encoder: str | None = None,
    rebuild: bool = False,
    stays: str | None = None,
) -> Iterator[tuple[SearchEngine, Settings]]:
    """An engine by the settings; heavy imports happen here, not when the command line is parsed.

    With `rebuild` generations are built beside everything else when they are due. `stays` is the reason why
    no server does what the command does, and what to do: the error where one holds the lock.
    """
    from dsearch.config import load_settings

    chosen = {"encoder": encoder, "device": device, "backend": backend, "threads": threads}
    settings = load_settings(home=home, next_encoder=next_encoder, **chosen)
    from dsearch.threads import set_threads

    set_threads(settings.threads)

    from dsearch.encoder import EncoderSource
    from dsearch.engine import SearchEngine

    following = settings.next_encoder
    try:
        opened = SearchEngine(
            settings.home,
            readonly=readonly,
            encoder=EncoderSource.of(settings, tell=say),
            next_encoder=None if following is None else EncoderSource.of(settings, name=following, tell=say),
            query_cache_bytes=settings.query_cache_bytes,
            rebuild_share=(settings.rebuild_share or None) if rebuild else None,
        )
    except HomeLocked as locked:
        if stays is None or locked.url is None:
            raise
        raise HomeLocked(f"the server at {locked.url} runs on this home; {stays}") from None
    with opened as engine:
        yield engine, settings


def reopening(settings: Settings) -> OpenEngine:
    """Opens the home of these settings readonly, with their encoders, in the process of a task."""
    from dsearch.service.tasks.jobs import open_readonly

    return partial(
        open_readonly,
        settings.home,
        settings.encoder,
        settings.device,
        settings.dtype,
        settings.backend,
        settings.next_encoder,
        settings.cache,
    )


class ProgressBars:
    """One bar a stage on stderr, with rate and time left; nothing but a line a stage where nobody watches."""

    def __init__(self):
        self._bars: Bars | None = None  # with the first progress: importing them takes a while
        self._tasks: dict[str, Any] = {}
        self._line_at_s = 0.0

    def __enter__(self) -> Callable[[Progress], None]:
        return self._show

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Draw nothing meanwhile, so that a question can be asked."""
        if self._bars is not None:
            self._bars.stop()
        yield
        if self._bars is not None:
            self._bars.start()

    def _started(self) -> Bars:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        console = Console(stderr=True)
        bars = Bars(
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("ETA {task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
        )
        bars.start()
        return bars

    def _show(self, progress: Progress) -> None:
        if self._bars is None:
            self._bars = self._started()
        rate = ""
        if progress.elapsed_s > 0.5 and progress.done:
            unit = UNITS.get(progress.stage, "documents")
            rate = f"{as_rate(progress.done / progress.elapsed_s)} {unit}/s"
        if progress.stage not in self._tasks:
            name = STAGES.get(progress.stage, progress.stage)
            self._tasks[progress.stage] = self._bars.add_task(
                name, total=progress.total or None, rate="", left="-:--:--"
            )
        left_s = progress.seconds_left
        self._bars.update(
            self._tasks[progress.stage],
            completed=progress.done,
            total=progress.total or None,
            rate=rate,
            left="-:--:--" if left_s is None else str(timedelta(seconds=round(left_s))),
        )
        if self._bars.disable:
            self._tell(progress, rate, left_s)

    def _tell(self, progress: Progress, rate: str, left_s: float | None) -> None:
        """A line now and then, for logs."""
        finished = progress.total and progress.done >= progress.total
        due = progress.elapsed_s - self._line_at_s >= 10
        if progress.elapsed_s < self._line_at_s:
            self._line_at_s = 0.0
        if (finished and progress.elapsed_s >= 1) or due:
            self._line_at_s = progress.elapsed_s
            left = ""
            if left_s is not None and not finished:
                left = f", ETA {left_s:.0f} s"
            name = STAGES.get(progress.stage, progress.stage)
            say(f"{name}: {progress.done}/{progress.total or '?'} {rate}{left}".rstrip())


def as_rate(per_s: float) -> str:
    """A number of things a second; decimals where there are few, so that none reads as standing still."""
    if per_s < 0.095:
        return f"{per_s:.2g}"
    return f"{per_s:,.1f}" if per_s < 9.95 else f"{per_s:,.0f}"


def as_json(value: Any) -> str:
    """A value in a line, as whoever gave it wrote it."""
    import orjson

    return orjson.dumps(value).decode()


def print_json(content: Any) -> None:
    """The answer as JSON on stdout."""
    import orjson

    sys.stdout.write(
        orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode() + "\n"
    )


def show_outcome(text: str, content: Any, *, json: bool) -> None:
    """Print the outcome of a command: a sentence, or the same as JSON."""
    if json:
        print_json(content)
    else:
        print(text)

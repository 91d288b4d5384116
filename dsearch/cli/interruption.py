"""Ctrl-C: what stands after it, and the command that goes on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextvars import ContextVar

STANDS = {
    "demo": "what was made so far is used again",
    "index": "documents that were written stay",
    "watch": "documents that were written stay",
    "tune": "no version was made",
    "train": "no version was made",
    "refresh": "the index before it answers",
    "migrate": "the old encoder answers until the end, and what was encoded stays",
    "compact": "no document is lost",
    "purge": "no document is lost, and deleted ones may still be in files",
    "backup": "no backup was made",
    "restore": "no collection was made",
    "export": "a file that it was writing is not whole",
    "cluster start": "shards that were split stay",
}
READING = (
    *("search", "similar", "attend", "predict", "show", "facets", "serve", "mcp", "guide", "evaluate"),
    *("compare", "run", "collections", "stats", "verify", "config", "doctor"),
    *("judgements next", "feedback stats"),
)
_CHANGES = "what it changes was changed whole or not at all"

_options: ContextVar[tuple[str, ...]] = ContextVar("options", default=())


def go_on_with(*options: str) -> None:
    """From now on the command that goes on has these options too; none: it is the same command."""
    _options.set(options)


def interruption_line(arguments: Sequence[str]) -> str:
    """The line of a command that was interrupted."""
    again = [*arguments, *(option for option in _options.get() if option not in arguments)]
    pair = " ".join(arguments[:2])
    name = pair if pair in (*STANDS, *READING) else "".join(arguments[:1])
    stands = STANDS.get(name, "nothing was changed" if name in READING else _CHANGES)
    if "--resume" in again:
        stands = f"{stands}, and the run's checkpoints stay"
    return f"dsearch: interrupted; {stands}; to go on, run it again: dsearch {shlex.join(again)}"

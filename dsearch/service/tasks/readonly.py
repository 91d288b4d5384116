"""A home opened readonly in another process: by tasks, replicas of a cluster, bulk encoding.

The function that opens it is sent to that process with its arguments bound; nothing is loaded before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsearch.encoder import TextEncoder
    from dsearch.engine import SearchEngine

OpenEngine = Callable[[], "SearchEngine"]


def open_readonly(
    home: Path,
    encoder: str,
    device: str,
    dtype: str | None = None,
    backend: str | None = None,
    next_encoder: str | None = None,
) -> SearchEngine:
    """The home as a task sees it; with its arguments bound it is what `create_app` takes as `open_engine`."""
    from dsearch.encoder import CACHE_NAME, load_encoder
    from dsearch.engine import SearchEngine

    def load(name: str) -> TextEncoder:
        return load_encoder(name, backend=backend, dtype=dtype, device=device, cache=home / CACHE_NAME)

    return SearchEngine(
        home,
        readonly=True,
        encoder=partial(load, encoder),
        next_encoder=None if next_encoder is None else partial(load, next_encoder),
    )


def open_default(home: Path) -> SearchEngine:
    """The home with the default encoder."""
    from dsearch.engine import SearchEngine

    return SearchEngine(home, readonly=True)

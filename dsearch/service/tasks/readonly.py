"""A home opened readonly in another process: by tasks, replicas of a cluster, bulk encoding.

The function that opens it is sent to that process with its arguments bound; nothing is loaded before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsearch.engine import SearchEngine

OpenEngine = Callable[[], "SearchEngine"]


def open_readonly(
    home: Path,
    encoder: str,
    device: str,
    dtype: str | None = None,
    backend: str = "auto",
    next_encoder: str | None = None,
    cache: Path | str | None = None,
) -> SearchEngine:
    """The home as a task sees it; with its arguments bound it is what `create_app` takes as `open_engine`."""
    from dsearch.encoder import EncoderSource, encoder_cache
    from dsearch.engine import SearchEngine

    exports = encoder_cache(home, None if cache is None else Path(cache))
    own = EncoderSource(encoder, exports, backend, dtype, device)
    return SearchEngine(
        home,
        readonly=True,
        encoder=own,
        next_encoder=None if next_encoder is None else replace(own, name=next_encoder),
    )


def open_default(home: Path) -> SearchEngine:
    """The home with the default encoder."""
    from dsearch.engine import SearchEngine

    return SearchEngine(home, readonly=True)

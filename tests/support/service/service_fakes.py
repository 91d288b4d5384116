"""What the tests of the service share: an encoder that counts, documents, documents that attack, servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from support.fakes import HashingEncoder
from support.patience import LATEST_S
from support.warm.processes import WarmProcess, warm_start

from dsearch.engine import SearchEngine
from dsearch.types import Document

DIMENSION = 32
ORIGIN = "http://127.0.0.1"


class WordEncoder(HashingEncoder):
    """Remembers how many queries it was given at a time."""

    def __init__(self) -> None:
        super().__init__(DIMENSION)
        self.batches: list[int] = []

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        self.batches.append(len(texts))
        return super().encode_queries(texts)


WORDS = (
    *("attention", "query", "key", "value", "softmax", "head", "pool", "search"),
    *("index", "cat", "dog", "river", "stone", "lamp", "music", "index"),
)


def documents(count: int, *, seed: int = 0) -> list[Document]:
    """Made of a few words, so that every query finds several."""
    draw = np.random.default_rng(seed)
    return [
        Document(
            f"d{i:03d}",
            " ".join(draw.choice(WORDS, size=8)),
            title=f"Title {i} {draw.choice(WORDS)}",
            metadata={"i": i},
        )
        for i in range(count)
    ]


def filed_documents(count: int = 40, *, seed: int = 0) -> list[Document]:
    """Longer ones, of many words, with the metadata that files have."""
    draw = np.random.default_rng(seed)
    words = [f"{word}{n}" for word in WORDS for n in range(10)]
    return [
        Document(
            f"letters/{i:02}.md",
            " ".join(draw.choice(words, size=20)),
            title=f"Letter {i}",
            metadata={
                "path": f"letters/{i:02}.md",
                "type": ("md", "txt")[i % 2],
                "modified": f"2026-03-{i % 9 + 1:02}T10:00:00+00:00",
                "size": i * 17,
            },
        )
        for i in range(count)
    ]


SCRIPT = "<script>window.attacked = true</script>"
IMAGE = "<img src=x onerror='window.attacked = true'>"
NASTY = [
    Document(
        f"id {SCRIPT}",
        f"cat {SCRIPT} {IMAGE}",
        title=f"title {IMAGE}",
        metadata={SCRIPT: IMAGE, "kind": IMAGE},
    ),
    Document(
        f"only {IMAGE}", "cat \u202e javascript:window.attacked=true &lt;b&gt;", metadata={"kind": IMAGE}
    ),
    Document("long", f"cat {IMAGE} " + "dog " * 300 + SCRIPT, metadata={"kind": SCRIPT}),
]


def start_server(home: Path, *, cold: bool = False, **options: Any) -> WarmProcess | subprocess.Popen[str]:
    """A server in another process, which prints its port when it is ready.

    Args:
        home: of the server.
        cold: start an interpreter of its own. A fork counts the pages that it shares as its memory only when
            it touches them, so its resident memory grows without any allocation.
        options: `no_tasks`, `next_encoder`.
    """
    command = [sys.executable, str(Path(__file__).with_name("server_process.py")), str(home)]
    if options:
        command.append(json.dumps(options))
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]  # tests/support/fakes.py
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    start: Any = subprocess.Popen if cold else warm_start()
    return start(command, stdout=subprocess.PIPE, text=True, env=environment)


def origin_of(process: WarmProcess | subprocess.Popen[str]) -> str:
    """The origin of a server that was started, when it is ready."""
    assert process.stdout is not None
    return f"http://127.0.0.1:{int(process.stdout.readline())}"


@contextmanager
def serving(
    home: Path, *, cold: bool = False, **options: Any
) -> Iterator[tuple[str, WarmProcess | subprocess.Popen[str]]]:
    """The origin of a `start_server`, and the process, which ends well when the block does."""
    process = start_server(home, cold=cold, **options)
    try:
        yield origin_of(process), process
    finally:
        process.terminate()
        assert process.wait(LATEST_S) == 0
        assert process.stdout is not None
        process.stdout.close()


def newer_words() -> HashingEncoder:
    """What the collections of these tests are migrated to."""
    return HashingEncoder(48, "newer")


def open_both(home: Path) -> SearchEngine:
    """As a task's process opens a home whose server has a next encoder."""
    return SearchEngine(home, readonly=True, encoder=WordEncoder, next_encoder=newer_words)


def open_words(home: Path) -> SearchEngine:
    """As a task's process opens a home of these tests."""
    return SearchEngine(home, readonly=True, encoder=WordEncoder)

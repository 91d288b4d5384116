"""What the tests of the service share: an encoder that counts, documents, and documents that attack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from fakes import HashingEncoder

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


SCRIPT = "<script>window.attacked = true</script>"
IMAGE = "<img src=x onerror='window.attacked = true'>"
NASTY = [
    Document(f"id {SCRIPT}", f"cat {SCRIPT} {IMAGE}", title=f"title {IMAGE}", metadata={SCRIPT: IMAGE}),
    Document(f"only {IMAGE}", "cat \u202e javascript:window.attacked=true &lt;b&gt;"),
    Document("long", f"cat {IMAGE} " + "dog " * 300 + SCRIPT),
]

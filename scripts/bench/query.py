#!/usr/bin/env python3
"""Where the time of one query goes, in process: the encoder, the search, and attention's own part of it.

    python scripts/bench/query.py                            the back ends that are installed
    python scripts/bench/query.py --documents 5000 --backends torch

Entries of Python's documentation, queries of six of their words, none asked twice; one thread, CPU µs,
medians. `search` is the whole query less its encoder: candidates, scores, softmax, covered mass, ten hits
with their texts. `attention` is the softmax over the scores of 64 candidates and the pooling of their 384
numbers, measured behind a query, whose encoder has emptied the caches; `share` is its part of a query.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from dsearch.threads import set_threads

set_threads(1)

import numpy as np
import torch

from dsearch.attention import pool
from dsearch.attention.retrieval.kernel import Weighing
from dsearch.corpus import python_documents
from dsearch.encoder import load_encoder
from dsearch.engine import PassageOptions, SearchEngine

BACKENDS = ("torch", "openvino")
MODES = ("dense", "hybrid")
CANDIDATES, WARM = 64, 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    installed = [name for name in BACKENDS if importlib.util.find_spec(name)]
    parser.add_argument("--documents", type=int, default=1_000)
    parser.add_argument("--queries", type=int, default=100, help="of each kind of measurement")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=installed)
    options = parser.parse_args()
    print("| back end | mode | query, µs | encoder | search | attention | share |")
    print("|---|---|---|---|---|---|---|")
    for backend in options.backends:
        for mode, took in measured(backend, options.documents, options.queries).items():
            search = took["query"] - took["encoder"]
            parts = (took["query"], took["encoder"], search, took["attention"])
            shown = " | ".join(f"{one * 1e6:,.0f}" for one in parts)
            print(f"| {backend} | {mode} | {shown} | {took['attention'] / took['query']:.1%} |", flush=True)


def measured(backend: str, documents: int, queries: int) -> dict[str, dict[str, float]]:
    """CPU seconds by mode and part."""
    with tempfile.TemporaryDirectory() as folder:
        encoder = load_encoder(backend=backend, cache=Path(folder) / "models")
        engine = SearchEngine(Path(folder) / "home", encoder=lambda: encoder)
        collection = engine.create("bench", passages=PassageOptions(none=True))
        texts = list(islice(python_documents(), documents))
        collection.ingest(texts)
        collection.refresh()
        words = sorted({word for one in texts for word in one.content.split() if word.isalpha()})
        draw = np.random.default_rng(0)
        head = collection.head(collection.live_model)
        scores = torch.randn(1, 1, CANDIDATES) / 10
        embeddings = torch.randn(1, CANDIDATES, collection.store.dimension)

        def drawn() -> list[str]:
            return [" ".join(draw.choice(words, 6)) for _ in range(WARM + queries)]

        def attended(_: str) -> None:
            with torch.inference_mode():
                weights = Weighing(head.heads, head.mixture, head.temperature).weights(scores, None)
                pool(weights.mixed.unsqueeze(1), embeddings)

        def encoded(query: str) -> None:
            encoder.encode_queries([query])

        figures: dict[str, dict[str, float]] = {}
        for mode in MODES:
            search = partial(collection.search, mode=mode)
            figures[mode] = {
                "query": cost(search, drawn()),
                "encoder": cost(encoded, drawn(), before=attended),
                "attention": cost(attended, drawn(), before=search),
            }
        return figures


def cost(
    asked: Callable[[str], object], queries: Sequence[str], before: Callable[[str], object] | None = None
) -> float:
    """The median of CPU seconds; `before` is called before each and not counted."""
    took: list[float] = []
    for query in queries:
        if before is not None:
            before(query)
        started = time.process_time()
        asked(query)
        took.append(time.process_time() - started)
    return statistics.median(took[WARM:])


if __name__ == "__main__":
    main()

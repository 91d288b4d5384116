#!/usr/bin/env python3
"""Cost of a query memory: CPU time that it adds to a search, and bytes of a row.

    python scripts/bench/memory.py                             1,000, 10,000 and 100,000 rows
    python scripts/bench/memory.py --rows 10000 --documents 200000

Embeddings are synthetic: documents and past queries of common topics, five judged documents a row. The same
queries, one at a time and in one thread, are searched dense with the memory and without it, by turns; *added*
is the difference of the medians of their CPU times. *first* is the time of the first search, which also
computes what is kept, *file* the stored memory divided by its rows, *resident* what it occupies in the
process, *found* the share of the attention that an index of the rows finds, *inserted* the time to add a row.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

DIM = 384
JUDGED = 5
TOPICS = 500


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--documents", type=int, nargs="+", default=[20_000, 100_000])
    parser.add_argument("--queries", type=int, default=200)
    options = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    from dsearch.threads import set_threads

    set_threads(1)
    print("| documents | rows | without ms | added ms | first s | found | inserted ms | file | resident |")
    print("|" + "---|" * 9)
    for documents in options.documents:
        with tempfile.TemporaryDirectory() as folder:
            measure(documents, options.rows, options.queries, Path(folder))


def measure(documents: int, sizes: list[int], count: int, folder: Path) -> None:
    """Print a line for each number of rows over one collection."""
    import numpy as np

    from dsearch.attention.retrieval.fixed_head import FixedHead
    from dsearch.engine.models.memory import index_keys
    from dsearch.engine.ranking.ranker import Ranker
    from dsearch.engine.snapshot import Fresh, Snapshot
    from dsearch.index import Generation, KeywordIndex

    random = np.random.default_rng(0)
    topics = near(random, np.zeros((TOPICS, DIM), np.float32), 1.0)
    stored = near(random, topics[random.integers(TOPICS, size=documents)], 0.06)
    generation_folder = folder / "generation"
    Generation.build(
        generation_folder,
        number=1,
        sequence=1,
        rows=np.arange(1, documents + 1),
        embeddings=stored,
        texts=["x"] * documents,
        encoder={"name": "synthetic"},
    )
    generation = Generation.open(generation_folder)
    keyword = generation.keyword or KeywordIndex.build([])
    fresh = Fresh.of(np.empty(0, np.int64), np.empty((0, DIM), np.float32), [], keyword)
    snapshot = Snapshot.of(generation, fresh, np.empty(0, np.int64), 1)
    asked = near(random, stored[random.integers(documents, size=count)], 0.05)
    plain = Ranker(snapshot, FixedHead(DIM))
    for rows in sizes:
        memory, size = memory_of(random, stored, rows)
        layer = Ranker(snapshot, index_keys(FixedHead(DIM).remembering(memory)))
        began_s = time.process_time()
        layer.ranked(asked[:1], None)
        first_s = time.process_time() - began_s
        for one in asked[:, None]:  # lending is computed once for each document
            layer.ranked(one, None)
        times: dict[bool, list[float]] = {True: [], False: []}
        for one in asked[:, None]:
            for which in (True, False):
                began_s = time.process_time()
                (layer if which else plain).ranked(one, None)
                times[which].append((time.process_time() - began_s) * 1000)
        without = statistics.median(times[False])
        added = statistics.median(times[True]) - without
        more, _ = memory_of(random, stored, 1)
        began_s = time.process_time()
        memory.extended(more)
        inserted_ms = (time.process_time() - began_s) * 1000
        print(
            f"| {documents:,} | {rows:,} | {without:.2f} | {added:.2f} | {first_s:.1f} | "
            f"{found_share(memory, asked):.4f} | {inserted_ms:.0f} | {size / rows:,.0f} | "
            f"{resident(memory) / rows:,.0f} |",
            flush=True,
        )


def near(random, centres, spread: float):
    """Unit vectors around centres."""
    import numpy as np

    drawn = centres + spread * random.standard_normal(centres.shape).astype(np.float32)
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def memory_of(random, stored, rows: int):
    """Past queries like a document, which judge it and four others; and the size of their file."""
    import numpy as np

    from dsearch.attention.memory_rows import FixedMemory
    from dsearch.engine.models.memory import memory_bytes

    like = random.integers(len(stored), size=rows)
    states = near(random, stored[like], 0.05)
    judged = np.concatenate([like, random.integers(len(stored), size=rows * (JUDGED - 1))])
    documents, of_document = np.unique(judged, return_inverse=True)
    memory = FixedMemory(
        states,
        stored[documents],
        documents + 1,
        np.tile(np.arange(rows), JUDGED),
        of_document,
        np.ones(len(judged)),
        texts=[f"a past query of a few words with number {n}" for n in range(rows)],
        strength=0.4,
    )
    return memory, len(memory_bytes(memory))


def resident(memory) -> int:
    """Bytes of its arrays."""
    return sum(part.nbytes for part in memory.parts().values())


def found_share(memory, asked) -> float:
    """Attention on the past queries that a search takes, of that on as many by comparing all."""
    index, memory.index = memory.index, None
    exact = memory.attention(asked)[1].sum()
    memory.index = index
    return float(memory.attention(asked)[1].sum() / exact)


if __name__ == "__main__":
    main()

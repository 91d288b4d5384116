#!/usr/bin/env python3
"""Context for a language model: the passages that a question attends to, within a budget, with their sources.

    python scripts/examples/context.py ["A QUESTION"] [FOLDER]

Without a folder it reads this package's guides. Attention says when to stop: passages are taken until they
hold most of it, not until there are so many. A confident question gets one passage, a broad one several.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import dsearch
from dsearch.corpus import Problems, read_sources

SHARE = 0.9
MAX_CHARACTERS = 4000
PROMPT = "Answer from the sources alone and name them.\n\n{sources}\n\nQuestion: {question}\n"


def main() -> None:
    question = sys.argv[1] if len(sys.argv) > 1 else "what happens to clicks before they train a head?"
    folder = sys.argv[2] if len(sys.argv) > 2 else str(Path(dsearch.__file__).parent / "guide")
    with tempfile.TemporaryDirectory() as home, dsearch.SearchEngine(home) as engine:
        collection = engine.create("texts")
        collection.ingest(read_sources([folder], problems=Problems()))
        sources, held = [], 0.0
        for hit in collection.search(question, limit=10).hits:
            text = hit.passage.text if hit.passage else hit.text
            if sources and sum(map(len, sources)) + len(text) > MAX_CHARACTERS:
                break
            sources.append(f"[{hit.id}] {text}")
            held += hit.weight
            if held >= SHARE:
                break
    print(f"{len(sources)} source(s) hold {held:.0%} of the attention", file=sys.stderr)
    print(PROMPT.format(sources="\n\n".join(sources), question=question))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Search a folder of one's own: index it, ask it, see why.

    python scripts/examples/folder.py [FOLDER] ["A QUESTION"]

Without arguments it indexes this package's guides and asks them how to undo a training.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import dsearch
from dsearch.corpus import Problems, read_sources


def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else str(Path(dsearch.__file__).parent / "guide")
    question = sys.argv[2] if len(sys.argv) > 2 else "how do I undo a training?"
    with tempfile.TemporaryDirectory() as home, dsearch.SearchEngine(home) as engine:
        notes = engine.create("notes")
        report = notes.ingest(read_sources([folder], problems=Problems()))
        print(f"{report.inserted} documents")
        for hit in notes.search(question, limit=3, explain=True).hits:
            assert hit.explain is not None
            words = ", ".join(sorted(hit.explain.terms, key=lambda term: -sum(hit.explain.terms[term]))[:3])
            passage = hit.passage.text if hit.passage else hit.text
            print(f"{hit.weight:6.1%}  {hit.id}  (words: {words})")
            print("        " + " ".join(passage.split())[:100] + " …")


if __name__ == "__main__":
    main()

# With the guides of this release (other texts, other shares):
#
# 12 documents
#  49.0%  training.md  (words: do, how, train)
#         Training changes a *head*: projections of queries and keys, keyword weight and …

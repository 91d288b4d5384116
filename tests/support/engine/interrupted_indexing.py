"""A process that indexes slowly, to be killed: argv = home, number of documents."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.fakes import HashingEncoder

from dsearch.engine import SearchEngine
from dsearch.types import Document


class SlowEncoder(HashingEncoder):
    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        time.sleep(0.05)
        return super().encode_documents(texts)


if __name__ == "__main__":
    encoder = SlowEncoder()
    with SearchEngine(sys.argv[1], encoder=lambda: encoder) as engine:
        documents = [Document(id=str(i), text=f"text number {i}") for i in range(int(sys.argv[2]))]
        report = engine.collection_or_new("big").ingest(
            documents, lambda p: print(p.stage, p.done, flush=True)
        )
        print("encoded", encoder.encoded, "unchanged", report.unchanged, flush=True)

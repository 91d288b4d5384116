"""A process that indexes, to be killed: argv = home, number of documents, the step at which it waits."""

from __future__ import annotations

import sys
import time

from support.fakes import HashingEncoder

from dsearch.engine import SearchEngine
from dsearch.types import Document


def say(line: str) -> None:
    print(line, flush=True)
    if line in sys.argv[3:]:
        time.sleep(120)


def main() -> None:
    encoder = HashingEncoder()
    with SearchEngine(sys.argv[1], encoder=lambda: encoder) as engine:
        documents = [Document(id=str(i), text=f"text number {i}") for i in range(int(sys.argv[2]))]
        report = engine.collection_or_new("big").ingest(documents, lambda p: say(f"{p.stage} {p.done}"))
        print("encoded", encoder.encoded, "unchanged", report.unchanged, flush=True)

"""A judged collection with tokens, to fit a second stage on."""

from __future__ import annotations

from dsearch.engine import Collection, SearchEngine
from dsearch.types import Document

Judgements = dict[str, dict[str, float]]


def judged_collection(engine: SearchEngine) -> tuple[Collection, dict[str, str], Judgements]:
    """Sixty documents of three words; each of the 48 queries has two words of one."""
    documents = [Document(id=f"d{i}", title=f"a{i % 7}", text=f"b{i % 11} the c{i % 13}") for i in range(60)]
    collection = engine.create("judged")
    collection.ingest(documents, second_stage=True)
    queries = {f"q{i}": f"a{i % 7} c{i % 13}" for i in range(48)}
    return collection, queries, {f"q{i}": {f"d{i}": 1.0} for i in range(48)}

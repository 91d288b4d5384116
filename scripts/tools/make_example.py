"""Write index/example: a tiny home as this release writes it, which every later release must open.

    python scripts/tools/make_example.py index/example

Run once for each format number, never to make a failing test pass. expected.json beside the collection holds
what it answered when it was written.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.types import Document

FOODS = "apple bread cheese dough egg flour grape honey ice juice kale lemon mango nut oat pear"
QUERIES = ["cheese and bread", "honey", "a walnut cake"]
DIMENSION = 8


def main() -> None:
    home, foods = Path(sys.argv[1]), FOODS.split()
    shutil.rmtree(home, ignore_errors=True)
    with SearchEngine(home, encoder=lambda: HashingEncoder(DIMENSION)) as engine:
        collection = engine.create("golden")
        collection.ingest(
            Document(
                id=f"d{i}", title=food, text=f"{food} with {foods[(i * 5 + 3) % 16]}", metadata={"number": i}
            )
            for i, food in enumerate(foods)
        )
        collection.promote(collection.add_model(trained(), {"note": "a head that was not trained but drawn"}))
        collection.refresh()
        collection.upsert([Document(id="late", text="a walnut cake", value=2.5)])
        collection.delete(["d2"])
        expected = answers(collection)
    (home / "expected.json").write_text(json.dumps(expected, indent=1))
    for left in home.glob("LOCK*"):
        left.unlink()


def trained() -> Head:
    head = Head(DIMENSION)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        head.query_delta += 0.1 * torch.randn(head.query_delta.shape, generator=generator)
        head.key_delta += 0.1 * torch.randn(head.key_delta.shape, generator=generator)
    return head


def answers(collection: Collection) -> list[dict[str, object]]:
    """What the collection answers to fixed questions, in every mode and by both models."""
    return [
        {"query": query, "mode": mode, "model": model, "hits": [asdict(hit) for hit in hits]}
        for query in QUERIES
        for mode in ("hybrid", "dense", "keyword")
        for model in ("v0", "v1")
        for hits in [collection.search(query, limit=20, mode=mode, model=model).hits]  # type: ignore[arg-type]
    ]


if __name__ == "__main__":
    main()

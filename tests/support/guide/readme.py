"""What README speaks of: a folder of notes, judgements on them, questions."""

from __future__ import annotations

import json
from pathlib import Path

import dsearch

NOTES = {
    "attention.md": "# Attention\n\nHow attention works: queries are compared with keys, and values come "
    "back in proportion to a softmax of the scores.",
    "bread.txt": "Sourdough rises slowly because wild yeast is slow.",
    "kettle.txt": "A kettle boils water faster than a pot on the stove.",
    "tides.txt": "The moon pulls the sea, which gives us the tides.",
    "bees.html": "<html><head><title>Bees</title></head><body><p>Bees dance to tell each other where the "
    "flowers are, and how far away.</p></body></html>",
    "violin.txt": "A violin has four strings and no frets.",
    "rust.txt": "Rust is iron that has met oxygen and water.",
    "long.md": "# A diary\n\n" + "On this day nothing happened, and we wrote it down. " * 60,
}
ASKED = {
    "why does dough take so long": "bread.txt",
    "wild yeast": "bread.txt",
    "what boils water fastest": "kettle.txt",
    "tea without waiting": "kettle.txt",
    "why is there ebb and flow": "tides.txt",
    "what the moon does to the sea": "tides.txt",
    "how do insects talk": "bees.html",
    "finding flowers": "bees.html",
    "instruments with strings": "violin.txt",
    "music without frets": "violin.txt",
    "why does iron go brown": "rust.txt",
    "oxygen and metal": "rust.txt",
}


def prepare(folder: Path) -> None:
    """Make `notes/`, `my-judgements/` (layout of BEIR) and `queries.jsonl`."""
    notes, judged = folder / "notes", folder / "my-judgements"
    notes.mkdir()
    for name, text in NOTES.items():
        (notes / name).write_text(text, encoding="utf-8")
    (judged / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": f"q{i}", "text": query}) for i, query in enumerate(ASKED)]
    for file in (judged / "queries.jsonl", folder / "queries.jsonl"):
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for split in ("train", "test"):
        rows = "".join(f"q{i}\t{document}\t1\n" for i, document in enumerate(ASKED.values()))
        (judged / "qrels" / f"{split}.tsv").write_text(
            "query-id\tcorpus-id\tscore\n" + rows, encoding="utf-8"
        )


def visit(address: str) -> None:
    """Search the served notes, and say what fitted: feedback to train from."""
    with dsearch.Client(address) as client:
        for query, document in ASKED.items():
            found = client.search("notes", query)
            rank = next(hit.rank for hit in found.hits if hit.id == document)
            event = {
                "action_name": "thumbs_up",
                "object_id": document,
                "query_id": found.query_id,
                "event_attributes": {"position": {"ordinal": rank}},
            }
            client.feedback("notes", [{**event, "client_id": f"visitor-{n}"} for n in range(3)])

"""Recall of a recommender: attention of the item over a history, beside popularity and the mean history.

    python scripts/bench/recommender.py DATA/nfcorpus --home index

With a folder in the layout of BEIR and its collection in the home, each judged query is a reader: half of
its relevant documents are the history, the others are to be found among all documents. Recall of the
first 20 stands beside that of the documents that most other readers have in their histories, and of the
mean of the history. scripts/examples/recommender.py is the same by hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import dsearch
from dsearch.attention import attend

SHOWN = 20  # recommendations
LEAST = 6  # relevant documents of a reader
READERS = 300  # drawn at random
TEMPERATURE = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--home", default="index")
    options = parser.parse_args()
    measure(options.data, options.home)


def measure(folder: Path, home: str) -> None:
    """Print the recall of recommendations to the readers of a folder."""
    with dsearch.SearchEngine(home, readonly=True) as engine:
        collection = engine.collection(folder.name)
        positions = np.arange(collection.snapshot.positions)
        places = {
            id: at for at, (id,) in enumerate(collection.ids_at(collection.snapshot, positions[:, None]))
        }
        items = torch.as_tensor(collection.snapshot.embeddings(positions))
    readers = readers_of(folder, places)
    counts = torch.zeros(len(items))
    for history, _ in readers:
        counts[history] += 1

    def popular(history: list[int]) -> torch.Tensor:
        own = torch.zeros(len(items))
        own[history] = 1
        return counts - own

    def attentive(history: list[int]) -> torch.Tensor:
        keys = items[history]
        return (attend(items, keys, keys, score="dot", temperature=TEMPERATURE).context * items).sum(-1)

    ways: dict[str, Callable[[list[int]], torch.Tensor]] = {
        "popularity": popular,
        "mean of the history": lambda history: items @ items[history].mean(0),
        "attention of the item": attentive,
    }
    print(f"{len(readers)} readers, {len(items)} items\n\n| recommended by | recall@{SHOWN} |\n|---|---|")
    for name, scores in ways.items():
        print(f"| {name} | {np.mean([recall(scores(seen), seen, rest) for seen, rest in readers]):.3f} |")


def readers_of(folder: Path, places: dict[str, int]) -> list[tuple[list[int], list[int]]]:
    """History and rest of each reader, drawn once, from the judgements of the training split."""
    relevant: dict[str, list[int]] = {}
    for line in (folder / "qrels" / "train.tsv").read_text("utf-8").splitlines()[1:]:
        query, id, grade = line.split("\t")
        if float(grade) > 0 and id in places:
            relevant.setdefault(query, []).append(places[id])
    draw = np.random.default_rng(0)
    mixed = [draw.permutation(rows).tolist() for rows in relevant.values() if len(rows) >= LEAST]
    readers = [mixed[at] for at in draw.permutation(len(mixed))[:READERS]]
    return [(rows[: len(rows) // 2], rows[len(rows) // 2 :]) for rows in readers]


def recall(scores: torch.Tensor, history: list[int], rest: list[int]) -> float:
    """Share of the rest among the best items outside the history."""
    scores = scores.clone()
    scores[history] = -torch.inf
    best = scores.topk(SHOWN).indices.tolist()
    return len({*best} & {*rest}) / min(len(rest), SHOWN)


if __name__ == "__main__":
    main()

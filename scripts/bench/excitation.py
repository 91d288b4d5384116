#!/usr/bin/env python3
"""Held-out gain of an excitation: four heads with constant shares, and with shares that follow the query.

    python scripts/bench/excitation.py --home index DATA/scifact DATA/nfcorpus

Each folder in the layout of BEIR is a collection of that name in the home. Heads learn from qrels/train as
`dsearch train --heads 4` does, without tuning, memory or gate; held-out training queries, cross-fitted, are
ranked as served. Test judgements have no part. The interval is a paired bootstrap of the change of nDCG@10.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dsearch.threads import set_threads

set_threads()

import numpy as np

from dsearch.cli.commands.evaluate import read_judgements
from dsearch.corpus import BeirFolder, Problems
from dsearch.engine import SearchEngine
from dsearch.training import Examples, TrainingOptions, examples_from_judgements, train_head
from dsearch.training.gate.held_out import HeldOut

FOLDS, HEADS, SAMPLES = 3, 4, 10_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--home", default="index")
    parser.add_argument("--queries", type=int, default=600, help="training queries, drawn at random")
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args()
    print(
        "| collection | held-out queries | nDCG@10, constant shares | shares by the query | change (95 %) |"
    )
    print("|---|---|---|---|---|")
    for folder in options.data:
        with SearchEngine(options.home, readonly=True) as engine:
            examples = examples_of(engine, folder, options.queries)
            plain, excited = (answers(examples, options.epochs, excitation) for excitation in (False, True))
        change = excited - plain
        draws = np.random.default_rng(0).integers(len(change), size=(SAMPLES, len(change)))
        low, high = np.quantile(change[draws].mean(1), [0.025, 0.975])
        numbers = (
            f"{plain.mean():.4f} | {excited.mean():.4f} | {change.mean():+.4f} [{low:+.4f}, {high:+.4f}]"
        )
        print(f"| {folder.name} | {len(change)} | {numbers} |", flush=True)


def examples_of(engine: SearchEngine, folder: Path, most: int) -> Examples:
    """Training queries of a folder, over its collection."""
    judged = read_judgements(folder, "train")
    queries = {query.id: query.text for query in BeirFolder(folder).queries(Problems())}
    examples = examples_from_judgements(engine.collection(folder.name), queries, judged.qrels)
    return examples.subset(np.random.default_rng(0).permutation(len(examples))[:most].tolist())


def answers(examples: Examples, epochs: int, excitation: bool) -> np.ndarray:
    """nDCG@10 of each query by a head that did not learn from it."""
    values = np.zeros(len(examples))
    for fold in range(FOLDS):
        held = [at for at in range(len(examples)) if at % FOLDS == fold]
        rest = [at for at in range(len(examples)) if at % FOLDS != fold]
        options = TrainingOptions(epochs=epochs, heads=HEADS, excitation=excitation, folds=0)
        head = train_head(examples.subset(rest), options).settle()
        values[held] = HeldOut(examples.subset(held), examples.subset(rest)).answers(head).all
    return values


if __name__ == "__main__":
    main()

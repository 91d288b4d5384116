"""Which fusion of meaning and words to start from, without judgements and with few: left-one-collection-out.

    python scripts/bench/fusion.py DATA/scifact DATA/cranfield DATA/squad-sentences --python python

For every collection: its legs (dense, keyword); the default (keyword weight 1, no hop, k1 and b of the
index); the setting that the *other* collections would choose (the highest mean nDCG@10 over them); what
`dsearch tune` chooses on a few dozen and on all training queries of its own. Settings are chosen on training
judgements, or within folds; each is scored on test judgements. With `--python NAME` the documentation of
Python joins, its summary lines split into two halves. The collections of the folders' names must be indexed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dsearch.threads import set_threads

set_threads()

import numpy as np

from dsearch.cli.commands.evaluate import read_judgements
from dsearch.corpus import BeirFolder, Problems, python_corpus
from dsearch.engine import Collection, SearchEngine
from dsearch.evaluation import bootstrap_columns, cross_validation, read_folds, without_pairs
from dsearch.training import Examples, examples_from_judgements, tune
from dsearch.training.ranking import Ranking
from dsearch.training.relevant import ndcg_at_10
from dsearch.training.tune import DEFAULT, DENSE, KEYWORD, WEIGHTINGS, Setting, head_of

FEW = 48
WEIGHTS = (0.0, 0.2, 0.4, 0.7, 1.0, 1.3, 1.7, 2.5, 5.0, KEYWORD.keyword_weight)
STRENGTHS = (0.5, 1.0)
PAIRS = [(weight, 0.0) for weight in WEIGHTS] + [(w, s) for w in (0.7, 1.0, 1.3, 1.7) for s in STRENGTHS]
GRID = tuple(Setting(weight, strength, bm25) for bm25 in (None, *WEIGHTINGS) for weight, strength in PAIRS)


@dataclass(frozen=True)
class Turn:
    """What is chosen on and what is scored."""

    chosen_on: Examples
    scored_on: Examples


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--home", type=Path, default=Path("index"))
    parser.add_argument("--python", metavar="COLLECTION", help="the demo's collection")
    parser.add_argument("--most", type=int, default=1000, help="queries of a collection, drawn, at most")
    parser.add_argument("--json", type=Path, help="also write everything here")
    arguments = parser.parse_args()
    turns: dict[str, list[Turn]] = {}
    with SearchEngine(arguments.home, readonly=True) as engine:
        for folder in arguments.folders:
            turns[folder.name] = list(of_folder(folder, engine.collection(folder.name), arguments.most))
        if arguments.python:
            turns[arguments.python] = list(of_python(engine.collection(arguments.python), arguments.most))
        grids = {name: [Grid(turn) for turn in each] for name, each in turns.items()}
        rows = [row_of(name, grids) for name in grids]
    names = list(rows[0])
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        print("| " + " | ".join(str(row[name]) for name in names) + " |")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


class Grid:
    """Every setting of the grid, scored once on both sides of a turn."""

    def __init__(self, turn: Turn):
        self.turn = turn
        self._rankings = Ranking(turn.chosen_on), Ranking(turn.scored_on)
        self.chosen_on = {setting: self.values(setting, 0) for setting in GRID}

    def values(self, setting: Setting, side: int) -> np.ndarray:
        ranking = self._rankings[side]
        examples = ranking.examples
        head = head_of(setting, examples.states.shape[1])
        return ndcg_at_10(ranking.top(head, hop_strength=setting.hop_strength), examples.relevant)


def row_of(name: str, grids: dict[str, list[Grid]]) -> dict[str, object]:
    elsewhere = max(
        GRID,
        key=lambda setting: np.mean(
            [
                np.mean([grid.chosen_on[setting].mean() for grid in each])
                for other, each in grids.items()
                if other != name
            ]
        ),
    )
    mine = grids[name]

    def scored(settings: list[Setting]) -> np.ndarray:
        return np.concatenate([grid.values(one, 1) for grid, one in zip(mine, settings, strict=True)])

    fixed = {"dense": DENSE, "keyword": KEYWORD, "default": DEFAULT}
    values = {label: scored([setting] * len(mine)) for label, setting in fixed.items()}
    values["chosen on the others"] = scored([elsewhere] * len(mine))
    tuned: dict[str, list[Setting]] = {}
    for label, count in (("few", FEW), ("all", None)):
        tuned[label] = [tune(drawn(grid.turn.chosen_on, count)).setting for grid in mine]
        values[f"tuned on {label}"] = scored(tuned[label])
    leg = max(("dense", "keyword"), key=lambda one: values[one].mean())
    row: dict[str, object] = {"collection": name, "queries": len(values["dense"])}
    for label, of in values.items():
        row[label] = f"{of.mean():.4f}"
    row["setting of the others"] = str(elsewhere)
    row["tuned on few to"] = "; ".join(map(str, tuned["few"]))
    row["tuned on all to"] = "; ".join(map(str, tuned["all"]))
    difference = bootstrap_columns((values["tuned on few"] - values[leg])[:, None])[0]
    interval = f"{difference.low:+.4f} to {difference.high:+.4f}"
    row["tuned on few − better leg"] = f"{difference.mean:+.4f} ({interval})"
    return row


def drawn(examples: Examples, count: int | None, seed: int = 0) -> Examples:
    if count is None or count >= len(examples):
        return examples
    order = np.random.default_rng(seed).permutation(len(examples))[:count]
    return examples.subset(np.sort(order).tolist())


def of_folder(folder: Path, collection: Collection, most: int) -> Iterator[Turn]:
    pairs, folds = folder / "source_docs.tsv", folder / "folds.json"
    judged = read_judgements(folder, "test", pairs if pairs.is_file() else None)
    texts = {query.id: query.text for query in BeirFolder(folder).queries(Problems())}
    qrels = without_pairs(judged.qrels, judged.exclude)

    def examples(judgements: dict[str, dict[str, float]]) -> Examples:
        return examples_from_judgements(collection, texts, some(judgements, most), judged.exclude)

    if folds.is_file():
        for fold in cross_validation(qrels, read_folds(folds)):
            yield Turn(examples(fold.train), examples(fold.test))
    else:
        assert judged.training is not None, f"{folder} has neither folds.json nor qrels/train.tsv"
        yield Turn(examples(judged.training), examples(qrels))


def of_python(collection: Collection, most: int) -> Iterator[Turn]:
    corpus = python_corpus(public_only=True)
    texts = {query.id: query.text for query in corpus.queries}
    halves = [{}, {}]
    for number, (query, grades) in enumerate(sorted(corpus.qrels.items())):
        halves[number % 2][query] = grades
    first, second = (examples_from_judgements(collection, texts, some(half, most)) for half in halves)
    yield Turn(first, second)


def some(judgements: dict[str, dict[str, float]], most: int) -> dict[str, dict[str, float]]:
    if len(judgements) <= most:
        return judgements
    order = np.random.default_rng(0).permutation(len(judgements))[:most]
    names = sorted(judgements)
    return {names[at]: judgements[names[at]] for at in sorted(order)}


if __name__ == "__main__":
    main()

"""How often the gate errs: chance let through, gains held back, poison believed.

    python scripts/bench_gate.py DATA/scifact --home index

Learns from qrels/train of a BEIR folder whose collection is indexed; the test judgements have no part.

    coin        the changes that a trained head makes, each with its sign by coin: no gain is the truth
    random      heads with random projections, small to large
    shuffled    heads trained on judgements that were dealt out anew among the queries
    real        heads trained as they should be, cross-fitted; so many resamplings of their held-out queries
    poisoned    heads trained on clicks that name one document for whatever is asked, or any documents at all,
                before the trusted slice that clicks are judged by

Of the first three no more than alpha may pass, of the fourth nearly all should, of the last none.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dsearch.threads import set_threads

set_threads()

import numpy as np  # noqa: E402
import torch  # noqa: E402

from dsearch.attention.head import Head  # noqa: E402
from dsearch.cli.judgements import read_judgements  # noqa: E402
from dsearch.corpus import BeirFolder, Problems  # noqa: E402
from dsearch.engine import SearchEngine  # noqa: E402
from dsearch.training import (  # noqa: E402
    Examples,
    Gate,
    TrainingOptions,
    examples_from_judgements,
    judge,
    train_head,
)
from dsearch.training.from_feedback import judged_by_trusted  # noqa: E402
from dsearch.training.holdout import Answers, HeldOut, joined, split_folds  # noqa: E402

FOLDS = 3
SCALES = (1e-4, 1e-3, 1e-2)
ONE_DOCUMENT, ANY_DOCUMENTS = "one document", "any documents"


@dataclass(frozen=True)
class Row:
    """How many of how many the gate let through."""

    name: str
    passed: int
    of: int

    def __str__(self) -> str:
        return f"{self.name}: {self.passed} of {self.of} passed"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--home", type=Path, default=Path("index"))
    parser.add_argument("--null-heads", type=int, default=200)
    parser.add_argument("--resamplings", type=int, default=100)
    parser.add_argument("--poisoned", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=TrainingOptions().epochs, help="of heads that learn")
    parser.add_argument("--null-epochs", type=int, default=2, help="of heads that have nothing to learn")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    started, rows = time.process_time(), []
    with SearchEngine(arguments.home, readonly=True) as engine:
        examples = judged(engine, arguments.folder)
        for row in trials(examples, arguments):
            rows.append(row)
            print(row, flush=True)
    print(f"{time.process_time() - started:.0f} s of CPU", file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(row) for row in rows], indent=1) + "\n")


def judged(engine: SearchEngine, folder: Path) -> Examples:
    training = read_judgements(folder, "train", None).qrels
    texts = {query.id: query.text for query in BeirFolder(folder).queries(Problems())}
    return examples_from_judgements(engine.collection(folder.name), texts, training)


def trials(examples: Examples, arguments: argparse.Namespace) -> Iterator[Row]:
    """Every row; see above."""
    folds = split_folds(examples, FOLDS, seed=0)
    rest = sorted(set(range(len(examples))) - set(folds[0]))
    training, part = examples.subset(rest), examples.subset(folds[0])
    held_out = HeldOut(part, training)
    untrained = Head(examples.states.shape[1]).eval()
    start = held_out.answers(untrained)
    before, after = cross_fitted(examples, folds, TrainingOptions(epochs=arguments.epochs))
    yield coins(before, after, arguments.null_heads)
    for scale in SCALES:
        heads = (random_head(examples, scale, seed) for seed in range(arguments.null_heads))
        passed = sum(judge(start, held_out.answers(head)).passed for head in heads)
        yield Row(f"random change of {scale:g}", passed, arguments.null_heads)
    passed = 0
    for seed in range(arguments.null_heads):
        options = TrainingOptions(epochs=arguments.null_epochs, retention=0.0, seed=seed)
        head = train_head(dealt_anew(training, seed), options)
        passed += judge(start, held_out.answers(head), seed=seed).passed
    yield Row("shuffled judgements", passed, arguments.null_heads)
    yield resampled(before, after, arguments.resamplings)
    for how in (ONE_DOCUMENT, ANY_DOCUMENTS):
        passed = 0
        for seed in range(arguments.poisoned):
            clicks = poisoned(training, how, seed)
            options = TrainingOptions(
                epochs=arguments.null_epochs, retention=0.0, objective="judged", seed=seed
            )
            passed += judged_by_trusted(clicks, part, untrained, train_head(clicks, options)).passed
        yield Row(f"clicks poisoned with {how}", passed, arguments.poisoned)


def cross_fitted(
    examples: Examples, folds: list[list[int]], options: TrainingOptions
) -> tuple[Answers, Answers]:
    """Every query by a head that was trained without its fold; and untrained."""
    before, after = [], []
    for part in folds:
        training = examples.subset(sorted(set(range(len(examples))) - set(part)))
        held_out = HeldOut(examples.subset(part), training)
        before.append(held_out.answers(Head(examples.states.shape[1]).eval()))
        after.append(held_out.answers(train_head(training, options)))
    return joined(before), joined(after)


def coins(before: Answers, after: Answers, count: int) -> Row:
    """A head without a gain: whether a query wins or loses as much as it did is left to a coin."""
    generator, passed = np.random.default_rng(0), 0
    change = after.all - before.all
    for seed in range(count):
        none = before.all + change * generator.choice([-1.0, 1.0], len(change))
        passed += judge(
            replace(before, unseen=before.all), replace(before, all=none, unseen=none), seed=seed
        ).passed
    return Row("signs by coin", passed, count)


def resampled(before: Answers, after: Answers, count: int) -> Row:
    """As many held-out queries, drawn with replacement."""
    generator, passed = np.random.default_rng(0), 0
    for seed in range(count):
        drawn = generator.integers(len(before), size=len(before))
        passed += judge(before.subset(drawn), after.subset(drawn), Gate(), seed=seed).passed
    return Row("real gains, resampled", passed, count)


def random_head(examples: Examples, scale: float, seed: int) -> Head:
    head = Head(examples.states.shape[1])
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (head.query_delta, head.key_delta):
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return head.eval()


def dealt_anew(examples: Examples, seed: int) -> Examples:
    """The judgements of each query go to another one."""
    order = np.random.default_rng(seed).permutation(len(examples))
    return replace(examples, relevant=[examples.relevant[i] for i in order])


def poisoned(examples: Examples, how: str, seed: int) -> Examples:
    """Clicks of somebody who wants one document, or disorder, on top."""
    generator = np.random.default_rng(seed)
    visible = examples.snapshot.visible()
    one = generator.choice(visible)
    relevant = [
        (
            np.array([one if how == ONE_DOCUMENT else generator.choice(visible)], np.int64),
            np.ones(1, np.float32),
        )
        for _ in range(len(examples))
    ]
    return replace(examples, relevant=relevant)


if __name__ == "__main__":
    main()

"""How often the gate errs: chance let through, gains held back, poison believed.

    python scripts/bench/gate.py DATA/scifact --home index --log gate.jsonl

Learns from qrels/train of a BEIR folder whose collection is indexed; the test judgements have no part.

    coin        the changes that a trained head makes, each with its sign by coin: no gain is the truth
    random      heads with random projections, small to large
    shuffled    heads trained on judgements that were dealt out anew among the queries
    whole       `finetune` from tuning to verdict on such judgements: head or tuned search may pass
    poisoned    heads trained on clicks that name one document for whatever is asked, or any documents at all,
                before the trusted slice that clicks are judged by
    real        heads trained as they should be, cross-fitted; so many resamplings of their held-out queries

Of the first four no more than alpha may pass, of poison none, of the last nearly all. Every trial is a line
of the log: an interrupted run prints what it has, and goes on from there when started again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from dsearch.threads import set_threads

set_threads()

import numpy as np
import torch

import dsearch.training
from dsearch.attention.retrieval.head import Head
from dsearch.cli.commands.evaluate import read_judgements
from dsearch.corpus import BeirFolder, Problems
from dsearch.engine import SearchEngine
from dsearch.training import (
    Examples,
    Gate,
    TrainingOptions,
    examples_from_judgements,
    finetune,
    judge,
    train_head,
)
from dsearch.training.finetune.feedback import judged_by_trusted
from dsearch.training.gate.gate import GateReport
from dsearch.training.gate.held_out import Answers, HeldOut, joined, split_folds

FOLDS = 3
SCALES = (1e-4, 1e-3, 1e-2)
ONE_DOCUMENT, ANY_DOCUMENTS = "one document", "any documents"
EVERY_S = 60.0  # between two lines of what has been found so far


@dataclass(frozen=True)
class Outcome:
    """What became of one trial."""

    passed: bool
    p_value: float | None
    gain: float | None

    @classmethod
    def of(cls, report: GateReport) -> Outcome:
        whole = report.slice("all").difference
        return cls(report.passed, report.p_value, None if whole is None else whole.mean)


@dataclass(frozen=True)
class Row:
    """How many of how many the gate let through; `null`: there was nothing to let through but chance."""

    name: str
    passed: int
    of: int
    asked: int
    null: bool

    @property
    def likely(self) -> float:
        """The probability that so many or more pass when each does with probability alpha."""
        alpha = Gate().alpha
        below = sum(
            math.comb(self.of, k) * alpha**k * (1 - alpha) ** (self.of - k) for k in range(self.passed)
        )
        return max(0.0, 1.0 - below)

    def __str__(self) -> str:
        told = f"{self.name}: {self.passed} of {self.of} passed"
        if self.null and self.of:
            told += (
                f" ({self.passed / self.of:.3f}; at {Gate().alpha:g} as many or more: p = {self.likely:.3f})"
            )
        return told + (f", {self.asked} asked for" if self.of < self.asked else "")


class Kind(NamedTuple):
    """Trials that differ in their seed alone."""

    name: str
    count: int
    trial: Callable[[int], Outcome]
    null: bool = True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--home", type=Path, default=Path("index"))
    parser.add_argument("--null-heads", type=int, default=200)
    parser.add_argument("--whole", type=int, default=20)
    parser.add_argument("--resamplings", type=int, default=100)
    parser.add_argument("--poisoned", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=TrainingOptions().epochs, help="of heads that learn")
    parser.add_argument("--null-epochs", type=int, default=2, help="of heads that have nothing to learn")
    parser.add_argument(
        "--log", type=Path, help="JSON lines, one for each trial; gone on with if it is there"
    )
    parser.add_argument("--only", default="", help="rows with this in their name")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started, rows, interrupted = time.process_time(), {}, False
    with SearchEngine(arguments.home, readonly=True) as engine:
        examples = judged(engine, arguments.folder)
        try:
            for row in rows_of(examples, arguments):
                rows[row.name] = row
        except KeyboardInterrupt:
            interrupted = True
    print(*rows.values(), sep="\n")
    print(f"{time.process_time() - started:.0f} s of CPU", file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows.values()], indent=1) + "\n")
    if interrupted:
        raise SystemExit("interrupted: the rows above are what was done until then")


def judged(engine: SearchEngine, folder: Path) -> Examples:
    training = read_judgements(folder, "train", None).qrels
    texts = {query.id: query.text for query in BeirFolder(folder).queries(Problems())}
    return examples_from_judgements(engine.collection(folder.name), texts, training)


def rows_of(examples: Examples, arguments: argparse.Namespace) -> Iterator[Row]:
    """Every row after each of its trials, so that there is something to print whenever it ends."""
    settings = {
        "data_sha256": examples.digest,
        "code_sha256": training_code(),
        "epochs": arguments.epochs,
        "null_epochs": arguments.null_epochs,
        "gate": asdict(Gate()),
    }
    log = Log(arguments.log, settings)
    trials = Trials(examples, arguments.epochs, arguments.null_epochs)
    for kind in (kind for kind in kinds(trials, arguments) if arguments.only in kind.name):
        passed, told_at = 0, time.monotonic()
        for seed in range(kind.count):
            passed += log.outcome(kind.name, seed, kind.trial).passed
            yield (row := Row(kind.name, passed, seed + 1, kind.count, kind.null))
            if time.monotonic() - told_at > EVERY_S and seed + 1 < kind.count:
                print(row, file=sys.stderr, flush=True)
                told_at = time.monotonic()
        if kind.count:
            print(row, file=sys.stderr, flush=True)


def kinds(trials: Trials, arguments: argparse.Namespace) -> list[Kind]:
    """What is tried; the cheap ones first."""
    null, poisoned = arguments.null_heads, arguments.poisoned
    return [
        *(
            Kind(f"random change of {scale:g}", null, lambda seed, scale=scale: trials.random(scale, seed))
            for scale in SCALES
        ),
        Kind("shuffled judgements", null, trials.shuffled),
        *(
            Kind(
                f"clicks poisoned with {how}", poisoned, lambda seed, how=how: trials.poison(how, seed), False
            )
            for how in (ONE_DOCUMENT, ANY_DOCUMENTS)
        ),
        Kind("shuffled, tuning and training", arguments.whole, trials.whole),
        Kind("signs by coin", null, trials.coin),
        Kind("real gains, resampled", arguments.resamplings, trials.resampled, False),
    ]


class Log:
    """The outcomes so far, on disk where a path is given."""

    def __init__(self, path: Path | None, settings: dict[str, Any]):
        self._path = path
        self._known: dict[tuple[str, int], Outcome] = {}
        if path is None:
            return
        lines = path.read_text().splitlines() if path.exists() else []
        if not lines:
            path.write_text(json.dumps(settings) + "\n")
        elif json.loads(lines[0]) != settings:
            raise SystemExit(
                f"{path} is of a run with other settings, or of other training code; name another file"
            )
        for line in lines[1:]:
            with_name = json.loads(line)
            key = (with_name.pop("name"), with_name.pop("seed"))
            self._known[key] = Outcome(**with_name)

    def outcome(self, name: str, seed: int, trial: Callable[[int], Outcome]) -> Outcome:
        """What this trial gives, or gave."""
        if (name, seed) not in self._known:
            self._known[name, seed] = found = trial(seed)
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(json.dumps({"name": name, "seed": seed, **asdict(found)}) + "\n")
        return self._known[name, seed]


def training_code() -> str:
    """A digest of what trains and judges: what it did before it was changed says nothing of it now."""
    sources = sorted(Path(dsearch.training.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()


@dataclass(frozen=True)
class Fold:
    """Queries that are held out, those that are not, and what untrained search gives."""

    training: Examples
    part: Examples
    held_out: HeldOut
    start: Answers


class Trials:
    """Every kind of trial by its seed, which also says which fold is held out."""

    def __init__(self, examples: Examples, epochs: int, null_epochs: int):
        self._examples = examples
        self._epochs, self._null_epochs = epochs, null_epochs
        self._parts = split_folds(examples, FOLDS, seed=0)
        self._untrained = Head(examples.states.shape[1]).eval()
        self._fold = cache(self._fold_of)

    def random(self, scale: float, seed: int) -> Outcome:
        """A head with random projections."""
        return self._judged(seed, random_head(self._examples, scale, seed))

    def shuffled(self, seed: int) -> Outcome:
        """A head that was trained on judgements of other queries."""
        training = dealt_anew(self._fold(seed % FOLDS).training, seed)
        options = TrainingOptions(epochs=self._null_epochs, retention=0.0, seed=seed)
        return self._judged(seed, train_head(training, options))

    def whole(self, seed: int) -> Outcome:
        """Whether anything goes live of what is tuned and trained on judgements of other queries."""
        options = TrainingOptions(epochs=self._null_epochs, seed=seed)
        trained = finetune(dealt_anew(self._examples, seed), options)
        return replace(Outcome.of(trained.gate), passed=trained.goes_live is not None)

    def poison(self, how: str, seed: int) -> Outcome:
        """A head that was trained on clicks of somebody who wants one document, or disorder, on top."""
        fold = self._fold(seed % FOLDS)
        clicks = poisoned(fold.training, how, seed)
        options = TrainingOptions(epochs=self._null_epochs, retention=0.0, objective="judged", seed=seed)
        head = train_head(clicks, options)
        return Outcome.of(judged_by_trusted(clicks, fold.part, self._untrained, head))

    def coin(self, seed: int) -> Outcome:
        """A head without a gain: whether a query wins or loses as much as it did is left to a coin."""
        before, after = self._trained
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], len(before))
        none = before.all + (after.all - before.all) * signs
        report = judge(replace(before, unseen=before.all), replace(before, all=none, unseen=none), seed=seed)
        return Outcome.of(report)

    def resampled(self, seed: int) -> Outcome:
        """As many held-out queries of a head that was trained as it should be, drawn with replacement."""
        before, after = self._trained
        drawn = np.random.default_rng(seed).integers(len(before), size=len(before))
        return Outcome.of(judge(before.subset(drawn), after.subset(drawn), seed=seed))

    @cached_property
    def _trained(self) -> tuple[Answers, Answers]:
        """Every query untrained, and by a head that was trained without its fold."""
        before, after = [], []
        for fold in map(self._fold, range(FOLDS)):
            before.append(fold.start)
            after.append(
                fold.held_out.answers(train_head(fold.training, TrainingOptions(epochs=self._epochs)))
            )
        return joined(before), joined(after)

    def _judged(self, seed: int, head: Head) -> Outcome:
        fold = self._fold(seed % FOLDS)
        return Outcome.of(judge(fold.start, fold.held_out.answers(head), seed=seed))

    def _fold_of(self, number: int) -> Fold:
        part = self._parts[number]
        training = self._examples.subset(sorted(set(range(len(self._examples))) - set(part)))
        held_out = HeldOut(self._examples.subset(part), training)
        return Fold(training, held_out.examples, held_out, held_out.answers(self._untrained))


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
    """Clicks that name one document, or any."""
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

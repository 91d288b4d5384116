"""How often the gate errs: chance let through, gains held back, poison believed.

    python scripts/bench/gate.py --simulated 1000
    python scripts/bench/gate.py DATA/scifact --home index --log gate.jsonl
    python scripts/bench/gate.py DATA/cranfield --split test --queries 60 --only "tuning and training"

With a BEIR folder whose collection is indexed, heads learn from qrels/train; test judgements have no part.

    coin        the changes that a trained head makes, each with its sign by coin: no gain is the truth
    random      heads with random projections, small to large
    shuffled    heads trained on judgements that were dealt out anew among the queries
    memory      a query memory of such judgements, chosen and judged beside the untrained search
    whole       `finetune` from tuning to verdict on such judgements: head, tuned search or memory may pass
    poisoned    heads trained on clicks that name one document for whatever is asked, or any documents at all,
                before the trusted slice that clicks are judged by
    real        heads trained as they should be, cross-fitted; so many resamplings of their held-out queries

Of the first five no more than alpha may pass, of poison none, of the last nearly all.

Rows that begin with "simulated" train nothing: they draw changes of nDCG@10, most of them 0 and a few of them
jumps (the document at another rank of the first ten, or small changes of many graded documents), for one
candidate or for a tuned search and a head that move together on a share of the queries. They are judged as
candidates of which nothing is expected; with one the one-sided t-test of the same changes is compared.

Every trial is a line of the log: an interrupted run prints what it has, and goes on from there when started
again.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
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
from dsearch.training.gate.decision import belief_of
from dsearch.training.gate.gate import CLAIMS, GateReport
from dsearch.training.gate.held_out import Answers, HeldOut, joined, split_folds
from dsearch.training.gate.noise import probability_of_noise
from dsearch.training.memory import MemoryTrials
from dsearch.training.ranking import Ranking
from dsearch.training.relevant import EVIDENCE_DEPTH, Relevant
from dsearch.training.tune import DEFAULT, DENSE, KEYWORD, head_of
from dsearch.training.tune import Trials as TuningTrials

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

    @property
    def highest(self) -> float:
        """Upper bound of the share that passes, one-sided 95 % (Clopper and Pearson 1934)."""
        low, high = self.passed / self.of, 1.0
        for _ in range(40):
            share = (low + high) / 2
            below = sum(
                math.comb(self.of, k) * share**k * (1 - share) ** (self.of - k)
                for k in range(self.passed + 1)
            )
            low, high = (share, high) if below > 0.05 else (low, share)
        return high

    def __str__(self) -> str:
        told = f"{self.name}: {self.passed} of {self.of} passed"
        if self.null and self.of:
            told += (
                f" ({self.passed / self.of:.3f}, at most {self.highest:.3f}; "
                f"at {Gate().alpha:g} as many or more: p = {self.likely:.3f})"
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
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--simulated", type=int, default=0, help="draws of each row that trains nothing")
    parser.add_argument("--home", type=Path, default=Path("index"))
    parser.add_argument("--null-heads", type=int, default=200)
    parser.add_argument("--memories", type=int, default=200)
    parser.add_argument("--queries", type=int, help="draw so many of the training queries [all]")
    parser.add_argument("--split", default="train", help="judgements; of a collection in folds: test [train]")
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
    examples = None
    if arguments.folder is not None:
        with SearchEngine(arguments.home, readonly=True) as engine:
            examples = judged(engine, arguments.folder, arguments.queries, arguments.split)
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


def judged(engine: SearchEngine, folder: Path, queries: int | None = None, split: str = "train") -> Examples:
    training = read_judgements(folder, split, None).qrels
    texts = {query.id: query.text for query in BeirFolder(folder).queries(Problems())}
    if queries is not None and queries < len(training):
        drawn = np.random.default_rng(0).choice(sorted(training), queries, replace=False)
        training = {query: training[query] for query in drawn.tolist()}
    return examples_from_judgements(engine.collection(folder.name), texts, training)


def rows_of(examples: Examples | None, arguments: argparse.Namespace) -> Iterator[Row]:
    """Every row after each of its trials, so that there is something to print whenever it ends."""
    settings = {
        "data_sha256": None if examples is None else examples.digest,
        "code_sha256": training_code(),
        "epochs": arguments.epochs,
        "null_epochs": arguments.null_epochs,
        "gate": asdict(Gate()),
    }
    log = Log(arguments.log, settings)
    every = simulated_kinds(arguments.simulated)
    if examples is not None:
        every += kinds(Trials(examples, arguments.epochs, arguments.null_epochs), arguments)
    for kind in (kind for kind in every if arguments.only in kind.name):
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
        Kind("memory of shuffled judgements", arguments.memories, trials.memory),
        Kind("shuffled, tuning and training", arguments.whole, trials.whole),
        Kind("signs by coin", null, trials.coin),
        Kind("real gains, resampled", arguments.resamplings, trials.resampled, False),
    ]


FEW = 0.6  # of the queries of a simulation have seen documents
SAMPLES = 1000


@cache
def sizes_of(kind: str) -> tuple[float, float]:
    """Mean and mean square of the jumps."""
    sizes = jumps(np.random.default_rng(0), 100_000, kind)
    return float(sizes.mean()), float((sizes**2).mean())


def jumps(generator: np.random.Generator, queries: int, kind: str) -> np.ndarray:
    """Absolute changes of nDCG@10: of the one relevant document's rank, or of many graded ones."""
    if kind == "graded":
        return np.abs(generator.normal(0, 0.08, queries) * generator.exponential(1, queries))
    gains = np.append(1 / np.log2(np.arange(2, 12)), 0.0)
    return np.abs(gains[generator.integers(11, size=queries)] - gains[generator.integers(11, size=queries)])


def moved(
    generator: np.random.Generator, queries: int, kind: str, gain: float = 0.0, deviation: float | None = None
) -> np.ndarray:
    """Changes with this expected gain: most are 0, and of the jumps more go up than down.

    Args:
        generator: random numbers.
        queries: number of queries.
        kind: "single" or "graded".
        gain: expected mean change.
        deviation: expected deviation; None for jumps on 15 % (single) or 70 % (graded) of the queries.
    """
    (mean, square), share = sizes_of(kind), {"single": 0.15, "graded": 0.7}[kind]
    scale = 1.0
    if deviation is not None:
        share = (deviation**2 + gain**2) / square
        scale, share = math.sqrt(max(1.0, share)), min(1.0, share)  # jumps on all queries, and larger ones
    up = 0.5 + gain / (2 * share * scale * mean)
    if not 0 <= up <= 1:
        raise ValueError(f"jumps of kind {kind!r} on {share:.0%} of the queries cannot gain {gain:g}")
    signs = np.where(generator.random(queries) < up, 1.0, -1.0)
    return np.where(generator.random(queries) < share, scale * signs * jumps(generator, queries, kind), 0.0)


def answers_of(changes: np.ndarray, seen: np.ndarray) -> tuple[Answers, Answers]:
    """Answers before and after, of which only the difference has a part."""
    before = np.full(len(changes), 0.5)
    after = before + changes
    return (
        Answers(before, seen, np.where(seen, np.nan, before)),
        Answers(after, seen, np.where(seen, np.nan, after)),
    )


def one_alone(
    seed: int, kind: str, queries: int, gain: float = 0.0, deviation: float | None = None
) -> Outcome:
    """The verdict on one candidate."""
    generator = np.random.default_rng(seed)
    changes = moved(generator, queries, kind, gain, deviation)
    return Outcome.of(
        judge(*answers_of(changes, generator.random(queries) < FEW), samples=SAMPLES, seed=seed)
    )


def by_t_test(seed: int, kind: str, queries: int, gain: float, deviation: float | None = None) -> Outcome:
    """The verdict of a one-sided t-test, on the changes that `one_alone` judges."""
    changes = moved(np.random.default_rng(seed), queries, kind, gain, deviation)
    error = float(changes.std(ddof=1)) / math.sqrt(queries)
    p_value = 1.0 if error == 0 else float(1 - student_t(changes.mean() / error, queries - 1))
    return Outcome(p_value <= Gate().alpha, p_value, float(changes.mean()))


def student_t(value: float, freedom: int) -> float:
    """Distribution function of Student's t, by integration."""
    grid = np.linspace(-60.0, value, 20_001) if value > -60 else np.array([-60.0])
    density = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(
        math.pi * freedom
    )
    density *= (1 + grid**2 / freedom) ** (-(freedom + 1) / 2)
    return float(((density[1:] + density[:-1]) / 2 * np.diff(grid)).sum())


def null_pair(seed: int, kind: str, queries: int, alike: float) -> Outcome:
    """Whether anything goes live of two candidates without a gain, each with its part of alpha."""
    generator = np.random.default_rng(seed)
    tuned, own = moved(generator, queries, kind), moved(generator, queries, kind)
    head = np.where(generator.random(queries) < alike, tuned, own)
    seen = generator.random(queries) < FEW
    reports = [
        judge(*answers_of(of, seen), replace(Gate(), alpha=claim * Gate().alpha), samples=SAMPLES, seed=seed)
        for of, claim in zip((tuned, head), CLAIMS, strict=True)
    ]
    return replace(Outcome.of(reports[1]), passed=any(report.passed for report in reports))


def with_slice(seed: int, queries: int, few: int, change: float) -> Outcome:
    """The verdict where all gain .03 but a few unseen queries, whose true mean changes by this."""
    generator = np.random.default_rng(seed)
    changes = moved(generator, queries, "graded", 0.03)
    seen = np.arange(queries) >= few
    changes[~seen] += change - 0.03
    return Outcome.of(judge(*answers_of(changes, seen), samples=SAMPLES, seed=seed))


def simulated_kinds(count: int) -> list[Kind]:
    """Rows that train nothing."""
    rows: list[tuple[str, Callable[[int], Outcome], bool]] = []
    for kind, queries in itertools.product(("single", "graded"), (30, 100, 400)):
        name = f"{kind}, {queries} queries"
        rows.append((f"one null candidate, {name}", partial(one_alone, kind=kind, queries=queries), True))
    for kind, alike in itertools.product(("single", "graded"), (0.0, 0.7)):
        name = f"two null candidates, {kind}, 100 queries, {alike:.0%} alike"
        rows.append((name, partial(null_pair, kind=kind, queries=100, alike=alike), True))
    for kind, queries, gain, deviation in (
        ("single", 100, 0.03, 0.12),
        ("graded", 100, 0.03, 0.12),
        ("graded", 100, 0.03, 0.105),
        ("graded", 60, 0.03, 0.12),
        ("single", 200, 0.02, 0.15),
        ("graded", 400, 0.015, 0.15),
    ):
        about = f"gain {gain:g}, deviation {deviation:g}, {queries} queries, {kind}"
        options = {"kind": kind, "queries": queries, "gain": gain, "deviation": deviation}
        rows.append((f"{about}: the gate", partial(one_alone, **options), False))
        rows.append((f"{about}: t-test", partial(by_t_test, **options), False))
    for few, change in ((5, 0.0), (20, 0.0), (60, 0.0), (27, -0.074), (60, -0.05)):
        name = f"all gain .03, but {few} unseen of 400 queries {change:+g}"
        rows.append((name, partial(with_slice, queries=400, few=few, change=change), False))
    return [Kind(f"simulated: {name}", count, trial, null) for name, trial, null in rows]


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
        self._remembering = examples.remembering()
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

    def memory(self, seed: int) -> Outcome:
        """A memory of judgements of other queries, beside the untrained search."""
        examples = dealt_anew(self._remembering, seed)
        ranking, relevant = Ranking(examples), Relevant(examples.relevant)
        dim = examples.states.shape[1]
        tops = {of: ranking.top(head_of(of, dim), EVIDENCE_DEPTH) for of in (DEFAULT, DENSE, KEYWORD)}
        values = {of: relevant.ndcg_at_10(top) for of, top in tops.items()}
        precisions = {of: relevant.average_precision(top) for of, top in tops.items()}
        trials = TuningTrials(examples, np.arange(len(examples)), values, precisions, DEFAULT, seed, 0.0)
        noise = probability_of_noise(examples, head_of(DEFAULT, dim), seed=seed)
        chosen, report = MemoryTrials.of(trials).judged(belief=belief_of("memory", len(examples), noise))
        outcome = Outcome.of(report)
        return replace(outcome, passed=outcome.passed and chosen.memory is not None)

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

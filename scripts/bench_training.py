"""What training brings beside the usual baselines: same encoder, data, split, machine, one run.

    python scripts/bench_training.py DATA/scifact --home index
    python scripts/bench_training.py DATA/cranfield --home index     # five folds, source documents left out
    python scripts/bench_training.py DATA/scifact --null-heads 200   # how often the gate lets chance through

Rows: frozen dense, BM25, their reciprocal rank fusion (Cormack et al. 2009, k = 60), hybrid with weight 1,
tuned (keyword weight and hop strength), a head trained from the untrained and from the tuned search; each as
trained and as the gate would have it ("gated": what answers in the end). The collection of the folder's name
must be indexed. Folders with `folds.json` are cross-validated, without `source_docs.tsv` if there is one;
others learn from qrels/train and are scored on qrels/test.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsearch.threads import set_threads

set_threads()

import numpy as np  # noqa: E402
import torch  # noqa: E402

from dsearch.attention.head import Head  # noqa: E402
from dsearch.cli.judgements import Judgements, read_judgements  # noqa: E402
from dsearch.corpus import BeirFolder, Problems  # noqa: E402
from dsearch.engine import Collection, SearchEngine, System, make_run  # noqa: E402
from dsearch.evaluation import (  # noqa: E402
    Qrels,
    Run,
    Values,
    build_report,
    cross_validation,
    evaluate,
    read_folds,
    split_seen,
    without_pairs,
)
from dsearch.training import (  # noqa: E402
    Examples,
    Gate,
    TrainingOptions,
    examples_from_judgements,
    finetune,
    judge,
    tune,
)
from dsearch.training.holdout import HeldOut  # noqa: E402
from dsearch.types import Query  # noqa: E402

MEASURES = ["nDCG@10", "Recall@100"]
RRF_K = 60


@dataclass
class Results:
    """Values of every row, gathered over folds; seconds until each could answer."""

    values: dict[str, Values] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=lambda: {"seen": [], "unseen": []})

    def add(self, name: str, values: Values, seconds: float) -> None:
        row = self.values.setdefault(name, {measure: {} for measure in MEASURES})
        for measure in MEASURES:
            row[measure].update(values[measure])
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--home", type=Path, default=Path("index"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--objective", default="listwise")
    parser.add_argument("--null-heads", type=int, default=0, metavar="HEADS")
    parser.add_argument("--json", type=Path, help="also write everything here")
    arguments = parser.parse_args()
    everything: dict[str, Any] = {}
    with SearchEngine(arguments.home, readonly=True) as engine:
        for folder in arguments.folders:
            collection = engine.collection(folder.name)
            if arguments.null_heads:
                examples = next(turns(folder, collection)).examples
                everything[folder.name] = null_heads(examples, arguments.null_heads)
                continue
            results = run_rows(folder, collection, arguments)
            report = build_report(results.values, baseline="hybrid", groups=results.groups)
            print(f"\n## {folder.name}\n\n{report.to_text()}\n")
            for name, seconds in results.seconds.items():
                print(f"{name}: {seconds:.1f} s until it could answer")
            everything[folder.name] = {**report.to_dict(), "seconds": results.seconds}
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1))


@dataclass
class Turn:
    """What is learned from and what is scored."""

    examples: Examples
    train: Qrels
    test: Qrels
    judged: Judgements

    @property
    def queries(self) -> list[Query]:
        return [query for query in self.judged.queries if query.id in self.test]


def turns(folder: Path, collection: Collection) -> Iterator[Turn]:
    """The official split, or each fold in turn; pairs in source_docs.tsv have no part."""
    pairs, folds = folder / "source_docs.tsv", folder / "folds.json"
    judged = read_judgements(folder, "test", pairs if pairs.is_file() else None)
    texts = {query.id: query.text for query in BeirFolder(folder).queries(Problems())}
    qrels = without_pairs(judged.qrels, judged.exclude)
    if folds.is_file():
        for fold in cross_validation(qrels, read_folds(folds)):
            yield Turn(examples_from_judgements(collection, texts, fold.train), fold.train, fold.test, judged)
        return
    assert judged.training is not None, f"{folder} has neither folds.json nor qrels/train.tsv"
    yield Turn(examples_from_judgements(collection, texts, judged.training), judged.training, qrels, judged)


def run_rows(folder: Path, collection: Collection, arguments: argparse.Namespace) -> Results:
    results = Results()
    options = TrainingOptions(seed=arguments.seed, objective=arguments.objective)
    for turn in turns(folder, collection):
        for name, members in zip(("seen", "unseen"), split_seen(turn.test, turn.train), strict=True):
            results.groups[name].extend(members)

        def scored(run: Run, name: str, seconds: float = 0.0, of: Turn = turn) -> None:
            results.add(name, evaluate(run, of.test, MEASURES, exclude=of.judged.exclude), seconds)

        def ranked(system: System | None = None, head: Head | None = None, of: Turn = turn) -> Run:
            return make_run(collection, of.queries, system, head=head, exclude=of.judged.exclude)

        dense, keyword = ranked(System("dense")), ranked(System("keyword"))
        scored(dense, "dense")
        scored(keyword, "BM25")
        scored(fused(dense, keyword), "RRF")
        scored(ranked(), "hybrid")
        tuned = tune(turn.examples, seed=arguments.seed)
        scored(ranked(head=tuned.head), "tuned", tuned.seconds)
        kept = tuned.head if tuned.gate.passed else collection.head("v0")
        scored(ranked(head=kept), "tuned, gated", tuned.seconds)
        for name, start, before in (("head", None, 0.0), ("tuned head", kept, tuned.seconds)):
            trained = finetune(turn.examples, options, start=start)
            print(f"{name}: {trained.gate.verdict}: {trained.gate.reason}", file=sys.stderr, flush=True)
            seconds = before + trained.seconds
            scored(ranked(head=trained.head), name, seconds)
            answering = trained.head if trained.gate.passed else (start or collection.head("v0"))
            scored(ranked(head=answering), f"{name}, gated", seconds)
    return results


def fused(*runs: Run, depth: int = 100) -> Run:
    """Reciprocal rank fusion: Σ 1 / (60 + rank)."""
    found: Run = {}
    for query in runs[0]:
        scores: dict[str, float] = {}
        for run in runs:
            for rank, (id, _) in enumerate(run[query], 1):
                scores[id] = scores.get(id, 0.0) + 1 / (RRF_K + rank)
        found[query] = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:depth]
    return found


def null_heads(examples: Examples, count: int) -> dict[str, int]:
    """Heads that learned nothing, before the gate: how many it lets through at alpha = .05."""
    generator = np.random.default_rng(0)
    order = generator.permutation(len(examples))
    part = sorted(order[: len(order) // 3].tolist())
    rest = sorted(order[len(order) // 3 :].tolist())
    held_out = HeldOut(examples.subset(part), examples.subset(rest))
    before = held_out.answers(Head(examples.states.shape[1]).eval())
    passed = {}
    for scale in (1e-4, 1e-3, 1e-2):
        name = f"random change of {scale:g}"
        passed[name] = sum(
            judge(before, held_out.answers(random_head(examples, scale, seed)), Gate(), seed=seed).passed
            for seed in range(count)
        )
        print(f"{name}: {passed[name]} of {count} null heads passed", flush=True)
    return passed


def random_head(examples: Examples, scale: float, seed: int) -> Head:
    head = Head(examples.states.shape[1])
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (head.query_delta, head.key_delta):
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return head.eval()


if __name__ == "__main__":
    main()

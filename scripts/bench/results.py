"""Measure the quality figures of the results table again.

    python scripts/bench/results.py ../shared/data/scifact ../shared/data/cranfield

Each argument is a BEIR folder. It is indexed into --home (again: it is reused), then scored:
- with qrels/train.tsv: heads trained on it (--seeds of them) and scored on qrels/test.tsv, seen and unseen
  documents apart;
- with folds.json: heads trained without each fold and scored on it; source_docs.tsv, where there is one,
  names pairs that are left out of rankings and scores.
The documentation of this Python, learned from itself, comes last (--no-python leaves it out).
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from pathlib import Path

from dsearch.threads import set_threads

set_threads()

import torch

from dsearch.cli.commands.evaluate import Judgements, compare_systems, read_judgements
from dsearch.cli.session import ProgressBars
from dsearch.corpus import BeirFolder, Problems, python_corpus
from dsearch.engine import Collection, PassageOptions, SearchEngine, System, encode_queries, make_run
from dsearch.evaluation import EvaluationReport, Values, build_report, evaluate, split_seen
from dsearch.training import (
    TrainingOptions,
    examples_from_corpus,
    examples_from_judgements,
    finetune,
    self_supervised_options,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--home", type=Path, default=Path("index"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--python", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", type=Path, help="also write everything here")
    parser.add_argument(
        "--passages",
        action="store_true",
        help="cut documents longer than the window, in collections of their own",
    )
    arguments = parser.parse_args()
    # One embedding a document is what published figures are of.
    passages = PassageOptions(none=not arguments.passages)
    suffix = "-passages" if arguments.passages else ""
    everything: dict[str, object] = {}
    with SearchEngine(arguments.home) as engine:
        for folder in arguments.folders:
            collection = engine.collection_or_new(folder.name + suffix, passages=passages)
            index(collection, BeirFolder(folder).documents(Problems()))
            pairs, folds = folder / "source_docs.tsv", folder / "folds.json"
            judged = read_judgements(folder, "test", pairs if pairs.is_file() else None)
            report = compare_systems(collection, judged, folds=folds if folds.is_file() else None, model="v0")
            show(folder.name, report)
            everything[folder.name] = report.to_dict()
            if judged.training is not None:
                trained = train_on_split(collection, folder, judged, arguments.seeds)
                everything[f"{folder.name}, trained"] = trained
        if arguments.python:
            everything["python"] = python_documentation(engine, passages, suffix)
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1))


def index(collection: Collection, documents: object) -> None:
    with ProgressBars() as on_progress:
        report = collection.ingest(documents, on_progress)  # type: ignore[arg-type]
    print(f"{collection.name}: {collection.describe().documents} documents, {report}", file=sys.stderr)


def train_on_split(
    collection: Collection, folder: Path, judged: Judgements, seeds: int
) -> list[dict[str, object]]:
    """A head for each seed, each scored on the test split; the first one against the untrained search."""
    texts = {query.id: query.text for query in BeirFolder(folder).queries(Problems())}
    assert judged.training is not None
    examples = examples_from_judgements(collection, texts, judged.training)
    states = encode_queries(collection, judged.queries)
    groups = dict(zip(("seen", "unseen"), split_seen(judged.qrels, judged.training), strict=True))
    hybrid = evaluate(make_run(collection, judged.queries, states=states), judged.qrels)
    rows: list[dict[str, object]] = []
    for seed in range(seeds):
        started = time.monotonic()
        trained = finetune(examples, TrainingOptions(seed=seed))
        seconds = time.monotonic() - started
        values = evaluate(
            make_run(collection, judged.queries, states=states, head=trained.head), judged.qrels
        )
        report = build_report({"hybrid": hybrid, "trained": values}, groups=groups)
        if seed == 0:
            show(f"{collection.name}, trained with seed 0", report)
        names = dict.fromkeys(line.group for line in report.lines)  # without one that has no queries
        cells = {name: report.cell("trained", "nDCG@10", name).mean for name in names}
        rows.append({"seed": seed, "seconds": seconds, "epochs": trained.epochs, **cells})
        print(f"seed {seed}: " + ", ".join(f"{name} {value:.4f}" for name, value in cells.items()))
    for name in ("all", "seen", "unseen", "seconds"):
        if name not in rows[0]:
            continue
        values = [float(row[name]) for row in rows]  # type: ignore[arg-type]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{collection.name}, trained head, {name}: mean {statistics.mean(values):.4f}, sd {spread:.4f}")
    return rows


def python_documentation(engine: SearchEngine, passages: PassageOptions, suffix: str) -> dict[str, object]:
    """The demo's corpus, before and after learning from itself."""
    corpus = python_corpus()
    collection = engine.collection_or_new("python" + suffix, passages=passages)
    index(collection, corpus.documents)
    trained = finetune(examples_from_corpus(collection), self_supervised_options())
    version = collection.add_model(trained.head, trained.record)
    judged = Judgements(corpus.queries, corpus.qrels, None, {})
    states = encode_queries(collection, judged.queries)

    def scored(mode: str, model: str, keyword_weight: float | None = None) -> Values:
        head = copy.deepcopy(collection.head(model))
        if keyword_weight is not None:
            with torch.no_grad():
                head.keyword_weight.fill_(keyword_weight)
        system = System(mode, model)  # type: ignore[arg-type]
        return evaluate(make_run(collection, judged.queries, system, states=states, head=head), judged.qrels)

    reports = {
        name: build_report({name: scored(mode, "v0", weight), version: scored(mode, version, weight)})
        for name, mode, weight in (
            ("dense", "dense", None),
            ("hybrid", "hybrid", None),
            ("hybrid, keyword weight 0.3", "hybrid", 0.3),
        )
    }
    took_s = trained.record["seconds"]
    for mode, report in reports.items():
        show(f"python documentation, {mode}, before and after {took_s:.0f} s of training", report)
    return {mode: report.to_dict() for mode, report in reports.items()} | {"seconds": took_s}


def show(title: str, report: EvaluationReport) -> None:
    print(f"\n## {title}\n\n{report.to_text()}\n", flush=True)


if __name__ == "__main__":
    main()

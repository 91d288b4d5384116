"""Agents that search for tasks over one collection: what their outcomes teach, honest or not.

    python scripts/trials/agents.py DATA/cranfield DATA/nfcorpus --home index

A simulated agent has a task: a query of the searched part, drawn at random. It searches under an episode,
sees ten titles, reads a relevant document with probability .9 and another one with .1, names those read
that are relevant as useful, and calls the task a success if there are any. All goes through `dsearch.open`:
search, get, report_outcome, and `train(source="feedback")` with judgements of other queries for the gate.
Held-out queries, which nobody searched for and the gate does not know, give the figures.

    honest    500 episodes of 20 agents
    lying     the same, but a tenth of the episodes lies: an agent of two calls the last hits useful
    flooding  the honest ones, and one more key that reports 500 times that one document was useful

Shown for each: what the gate decides on the trained head, nDCG@10 on held-out queries of what answers then
and of the head as trained, the mean difference to the untrained ranking with its interval of 95 % (bootstrap
over queries), and how many of their first hits differ from the honest row's.

The collections must be indexed; they are copied, not changed. Folders with `folds.json`: folds 0 to 2 are
searched, fold 3 judges, the others are held out. Else a hundred queries of qrels/train are searched, and of
qrels/dev the even ones judge and the odd ones are held out. Judgements called test choose nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsearch.threads import set_threads

set_threads()

import numpy as np

import dsearch
from dsearch.cli.commands.evaluate import read_judgements
from dsearch.client import LocalEngine
from dsearch.engine import Collection, make_run
from dsearch.evaluation import Qrels, evaluate, read_folds, without_pairs
from dsearch.types import Query

PAGE = 10
MEASURE = "nDCG@10"
AGENTS = 20
LIARS = 2
SEARCHED = 100
FLOOD = 500
READS = (0.1, 0.9)


@dataclass(frozen=True)
class Parts:
    """Queries that are searched for, that judge, and that are held out; with the judgements of all."""

    searched: list[Query]
    judging: list[Query]
    held_out: list[Query]
    qrels: Qrels
    exclude: dict[str, set[str]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--home", type=Path, default=Path("index"))
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    report = {}
    print(
        "| collection | log | reports | gate | live | nDCG@10 live | as trained | difference | first hits |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for folder in arguments.folders:
        report[folder.name] = trial(folder, arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))


def read_parts(folder: Path) -> Parts:
    pairs, folds = folder / "source_docs.tsv", folder / "folds.json"
    if folds.is_file():
        judged = read_judgements(folder, "test", pairs if pairs.is_file() else None)
        exclude = {query: set(ids) for query, ids in judged.exclude.items()}
        qrels, fold_of = without_pairs(judged.qrels, exclude), read_folds(folds)
        queries = [query for query in judged.queries if query.id in qrels]
        parts = [
            [query for query in queries if fold_of[query.id] < 3],
            [query for query in queries if fold_of[query.id] == 3],
            [query for query in queries if fold_of[query.id] > 3],
        ]
        return Parts(*parts, qrels, exclude)
    train, dev = read_judgements(folder, "train"), read_judgements(folder, "dev")
    draw = np.random.default_rng(0).permutation(len(train.queries))[:SEARCHED]
    searched = [train.queries[at] for at in sorted(draw.tolist())]
    return Parts(searched, dev.queries[::2], dev.queries[1::2], {**train.qrels, **dev.qrels}, {})


def trial(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    parts = read_parts(folder)
    rows: dict[str, Any] = {}
    first: dict[str, str] = {}
    for log in ("honest", "lying", "flooding"):
        with tempfile.TemporaryDirectory() as place:
            home = Path(place) / "home"
            home.mkdir()
            shutil.copytree(arguments.home / folder.name, home / folder.name)
            with dsearch.open(home) as engine:
                row, hits = run(engine, folder.name, parts, log, arguments)
        first = first or hits
        row["first_hits"] = sum(hits[query] != first[query] for query in first)
        rows[log] = row
        low, high = row["interval"]
        print(
            f"| {folder.name} | {log} | {row['reports']} | {row['gate']} | {row['live']} | "
            f"{row['live_ndcg']:.4f} | {row['trained_ndcg']:.4f} | "
            f"{row['difference']:+.4f} ({low:+.4f} to {high:+.4f}) | {row['first_hits']} of {len(hits)} |",
            flush=True,
        )
    return rows


def run(
    engine: LocalEngine, name: str, parts: Parts, log: str, arguments: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, str]]:
    """One log: its row, and the first hits of held-out queries by the head as trained."""
    started = time.monotonic()
    collection = engine.engine.collection(name)
    before = values(collection, parts, "v0")[0]
    reports = episodes(engine, name, parts, log, arguments)
    judging = {query.id: parts.qrels[query.id] for query in parts.judging}
    result = engine.train(
        name,
        source="feedback",
        queries={query.id: query.text for query in parts.judging},
        judgements={
            id: {doc: grade for doc, grade in of.items() if grade >= 0} for id, of in judging.items()
        },
        exclude={id: sorted(ids) for id, ids in parts.exclude.items()},
        seed=arguments.seed,
    )
    version = result.result["model"]
    live = collection.live_model
    live_values, _ = values(collection, parts, live)
    trained, hits = values(collection, parts, version)
    differences = trained - before
    draw = np.random.default_rng(0).integers(len(differences), size=(10_000, len(differences)))
    low, high = np.quantile(differences[draw].mean(1), [0.025, 0.975])
    row = {
        "reports": reports,
        "gate": result.result["gate"]["verdict"],
        "reason": result.result["gate"]["reason"],
        "live": live,
        "before": float(before.mean()),
        "live_ndcg": float(live_values.mean()),
        "trained_ndcg": float(trained.mean()),
        "difference": float(differences.mean()),
        "interval": [float(low), float(high)],
        "seconds": round(time.monotonic() - started, 1),
    }
    return row, hits


def values(collection: Collection, parts: Parts, model: str) -> tuple[np.ndarray, dict[str, str]]:
    """nDCG@10 of each held-out query by the judgements, and its first hit."""
    run = make_run(collection, parts.held_out, head=collection.head(model), depth=PAGE, exclude=parts.exclude)
    qrels = {query.id: parts.qrels[query.id] for query in parts.held_out}
    by_query = evaluate(run, qrels, [MEASURE], parts.exclude)[MEASURE]
    return np.array([by_query[query.id] for query in parts.held_out if query.id in by_query]), {
        query: hits[0][0] if hits else "" for query, hits in run.items()
    }


def episodes(engine: LocalEngine, name: str, parts: Parts, log: str, arguments: argparse.Namespace) -> int:
    """Simulate the log; the number of reports."""
    draw = np.random.default_rng(arguments.seed)
    pages: dict[str, list[str]] = {}
    reports = 0
    for number in range(arguments.episodes):
        query = parts.searched[int(draw.integers(len(parts.searched)))]
        agent, chances = f"agent{number % AGENTS}", draw.random(PAGE)
        task = f"task{number}"
        found = engine.search(name, query.text, limit=PAGE, episode=task, operators=False)
        ids = pages[query.id] = [hit.id for hit in found.hits]
        relevant = [parts.qrels[query.id].get(id, 0) > 0 for id in ids]
        if log == "lying" and number % AGENTS < LIARS:
            readings = useful = [id for id, good in zip(ids, relevant, strict=True) if not good][-2:]
        else:
            pairs = zip(ids, relevant, chances.tolist(), strict=False)
            readings = [id for id, good, chance in pairs if chance < READS[good]]
            useful = [id for id in readings if parts.qrels[query.id].get(id, 0) > 0]
        for id in readings:
            engine.get(name, id, episode=task)
        engine.report_outcome(name, task, useful_ids=useful, success=bool(useful), client_id=agent)
        reports += 1
    if log == "flooding":
        target = pages[parts.searched[0].id if parts.searched[0].id in pages else next(iter(pages))][-1]
        victims = [query for query in parts.searched if target in pages.get(query.id, ())]
        for number in range(FLOOD):
            query, task = victims[number % len(victims)], f"flood{number}"
            engine.search(name, query.text, limit=PAGE, episode=task, operators=False)
            engine.get(name, target, episode=task)
            engine.report_outcome(name, task, useful_ids=[target], success=True, client_id="flood")
            reports += 1
    return reports


if __name__ == "__main__":
    main()

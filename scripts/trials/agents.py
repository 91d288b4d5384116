"""Agents that search for tasks over one collection: what their outcomes teach, honest or not.

    python scripts/trials/agents.py DATA/cranfield DATA/nfcorpus --home index

A simulated agent has a task: a query of the searched part, drawn at random. It searches under an episode,
sees ten titles, reads a relevant document with probability .9 and another one with .1, names those read
that are relevant as useful, and calls the task a success if there are any. All goes through `dsearch.open`:
search, get, report_outcome, and a training on feedback with judgements of other queries for the gate.
Held-out queries, which nobody searched for and the gate does not know, give the figures; none of them was
judged as one with a query that was searched for (training/gate/held_out.py).

    honest    500 episodes of 20 agents
    lying     the same, but a tenth of the episodes lies: an agent of two calls the last hits useful
    flooding  the honest ones, and one more key that reports 500 times that one document was useful

Shown for each: rows of the query memory that the log is worth, and queries that are left out;
what the gate decides on them; what is live then; the difference on held-out queries of what is live to the
untrained ranking, and of the rows whether they are live or not, in nDCG@10 with intervals of 95 % (bootstrap
over queries); how many of their first hits differ from the honest row's.

The collections must be indexed; they are copied, not changed. Folders with `folds.json`: each fold is held
out once, the one before it judges, the other three are searched for; figures are over all five. Else 500
queries of qrels/train are searched for, 1,000 judge, and 1,000 are held out, all drawn at random, `--draws`
times. Qrels of folders without folds are those of training alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from dsearch.threads import set_threads

set_threads()

import numpy as np

import dsearch
from dsearch.attention.retrieval.head import Head
from dsearch.cli.commands.evaluate import read_judgements
from dsearch.client import LocalEngine
from dsearch.engine import Collection, make_run
from dsearch.evaluation import Qrels, evaluate, read_folds, without_pairs
from dsearch.jobs import TrainingJob
from dsearch.training import run_training
from dsearch.training.gate.held_out import episodes_of
from dsearch.types import Query

PAGE = 10
MEASURE = "nDCG@10"
AGENTS = 20
LIARS = 2
SEARCHED, JUDGING, HELD_OUT = 500, 1000, 1000
FLOOD = 500
READS = (0.1, 0.9)
LOGS = ("honest", "lying", "flooding")


@dataclass(frozen=True)
class Parts:
    """Queries that are searched for, that judge, and that are held out; with the judgements of all."""

    searched: list[Query]
    judging: list[Query]
    held_out: list[Query]
    qrels: Qrels
    exclude: dict[str, set[str]]


@dataclass
class Row:
    """Figures of one log, over all parts of a collection; values of held-out queries one after another."""

    reports: int = 0
    rows: int = 0
    left_out: int = 0
    verdicts: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    live: int = 0
    before: list[float] = field(default_factory=list)
    by_live: list[float] = field(default_factory=list)
    by_rows: list[float] = field(default_factory=list)
    first_hits: list[str] = field(default_factory=list)

    def columns(self, name: str, log: str, honest: Row) -> list[str]:
        """As the table shows them."""
        parts = len(self.verdicts)
        passed = self.verdicts.count("passed")
        changed = sum(one != other for one, other in zip(self.first_hits, honest.first_hits, strict=True))
        return [
            name,
            log,
            str(self.reports),
            f"{self.rows}, {self.left_out} left out",
            f"{passed} of {parts} passed",
            f"{self.live} of {parts}",
            f"{np.mean(self.before):.4f}",
            interval(self.by_live, self.before),
            interval(self.by_rows, self.before),
            f"{changed} of {len(self.before)}",
        ]


COLUMNS = (
    *("collection", "log", "reports", "rows", "gate", "rows live", "untrained", "live", "rows as judged"),
    "first hits unlike honest",
)


def interval(after: list[float], before: list[float]) -> str:
    """Mean difference with its interval."""
    differences = np.array(after) - np.array(before)
    draw = np.random.default_rng(0).integers(len(differences), size=(4_000, len(differences)))
    low, high = np.quantile(differences[draw].mean(1), [0.025, 0.975])
    return f"{differences.mean():+.4f} ({low:+.4f} to {high:+.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--home", type=Path, default=Path("index"))
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    report = {}
    for folder in arguments.folders:
        rows = {log: Row() for log in LOGS}
        for number, parts in enumerate(parts_of(folder, arguments)):
            for log, row in rows.items():
                trial(folder.name, parts, log, row, arguments, arguments.seed + number)
        for log, row in rows.items():
            print("| " + " | ".join(row.columns(folder.name, log, rows["honest"])) + " |", flush=True)
        report[folder.name] = {log: asdict(row) for log, row in rows.items()}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))


def parts_of(folder: Path, arguments: argparse.Namespace) -> Iterator[Parts]:
    pairs, folds = folder / "source_docs.tsv", folder / "folds.json"
    if folds.is_file():
        judged = read_judgements(folder, "test", pairs if pairs.is_file() else None)
        exclude = {query: set(ids) for query, ids in judged.exclude.items()}
        qrels, fold_of = without_pairs(judged.qrels, exclude), read_folds(folds)
        queries = [query for query in judged.queries if query.id in qrels]
        for held_out in range(5):
            of = {(held_out - 1) % 5: 1, held_out: 2}
            parts: list[list[Query]] = [[], [], []]
            for query in queries:
                parts[of.get(fold_of[query.id], 0)].append(query)
            yield apart(Parts(parts[0], parts[1], parts[2], qrels, exclude))
        return
    train = read_judgements(folder, "train")
    for number in range(arguments.draws):
        draw = np.random.default_rng(arguments.seed + number).permutation(len(train.queries))
        ends = np.cumsum([0, SEARCHED, JUDGING, HELD_OUT]).tolist()
        parts = [
            [train.queries[at] for at in sorted(draw[start:end].tolist())]
            for start, end in itertools.pairwise(ends)
        ]
        yield apart(Parts(parts[0], parts[1], parts[2], train.qrels, {}))


def apart(parts: Parts) -> Parts:
    """The parts without queries that were judged as one with a query that is searched for."""
    queries = [*parts.searched, *parts.judging, *parts.held_out]
    number: dict[str, int] = {}
    relevant = [
        np.array([number.setdefault(id, len(number)) for id, g in parts.qrels[query.id].items() if g > 0])
        for query in queries
    ]
    episodes = dict(
        zip(
            [query.id for query in queries],
            episodes_of([(of.astype(np.int64), of) for of in relevant]).tolist(),
            strict=True,
        )
    )
    searched = {episodes[query.id] for query in parts.searched}
    return replace(
        parts,
        judging=[query for query in parts.judging if episodes[query.id] not in searched],
        held_out=[query for query in parts.held_out if episodes[query.id] not in searched],
    )


def trial(name: str, parts: Parts, log: str, row: Row, arguments: argparse.Namespace, seed: int) -> None:
    """Simulate one log on a copy of the collection, learn from it, and add its figures."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place) / "home"
        home.mkdir()
        shutil.copytree(arguments.home / name, home / name)
        with dsearch.open(home) as engine:
            collection = engine.engine.collection(name)
            before, _ = values(collection, parts, collection.head("v0"))
            row.reports += episodes(engine, name, parts, log, arguments.episodes, seed)
            job = TrainingJob(
                source="feedback",
                queries={query.id: query.text for query in parts.judging},
                judgements={query.id: positive(parts.qrels[query.id]) for query in parts.judging},
                exclude={id: sorted(ids) for id, ids in parts.exclude.items()},
                seed=seed,
            )
            learned = run_training(collection, job)
            learned.register(collection, job)
            by_live, _ = values(collection, parts, collection.head(collection.live_model))
            memory, by_rows, first = learned.outcomes, before, None
            if memory is not None:
                by_rows, first = values(collection, parts, memory.with_rows)
                row.rows += len(memory.rows)
                row.left_out += sum(memory.record["left_out"].values())
                row.reasons.append(f"{memory.record['setting']} {memory.gate.reason}")
                row.live += collection.store.model(collection.live_model).record.get("scope") == "outcomes"
            row.verdicts.append("none" if memory is None else memory.gate.verdict)
            row.before += before
            row.by_live += by_live
            row.by_rows += by_rows
            row.first_hits += first or [""] * len(before)


def positive(grades: Mapping[str, float]) -> dict[str, float]:
    return {id: grade for id, grade in grades.items() if grade >= 0}


def values(collection: Collection, parts: Parts, head: Head) -> tuple[list[float], list[str]]:
    """nDCG@10 of each held-out query by the judgements, and its first hit."""
    run = make_run(collection, parts.held_out, head=head, depth=PAGE, exclude=parts.exclude)
    qrels = {query.id: parts.qrels[query.id] for query in parts.held_out}
    by_query = evaluate(run, qrels, [MEASURE], parts.exclude)[MEASURE]
    ids = [query.id for query in parts.held_out if query.id in by_query]
    return [by_query[id] for id in ids], [run[id][0][0] if run.get(id) else "" for id in ids]


def episodes(engine: LocalEngine, name: str, parts: Parts, log: str, count: int, seed: int) -> int:
    """Simulate the log; the number of reports."""
    draw = np.random.default_rng(seed)
    pages: dict[str, list[str]] = {}
    reports = 0
    for number in range(count):
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

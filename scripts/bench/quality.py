"""What dense, keyword and hybrid search reach, and what `dsearch train` makes of judgements by itself.

    python scripts/bench/quality.py DATA --home index --log quality.jsonl
    python scripts/bench/quality.py DATA --collections nfcorpus --few 60 324
    python scripts/bench/quality.py DATA --collections cranfield --fold-seed 1
    python scripts/bench/quality.py DATA --collections cranfield nfcorpus --quick

DATA holds folders in BEIR's layout. A collection of a folder's name is indexed where it is not there yet.

Rows:
    dense, keyword, hybrid    untrained
    tuned                     keyword weight, k1 and b, and hop strength that training begins with
    memory                    that search with the query memory that training chose; tuned where it chose none
    head                      the trained head as it would be served, with its memory if it has one
    live                      what answers after `dsearch train` with its defaults and nothing else

Cases:
    folds.json                five folds; source_docs.tsv has no part in rankings and judgements
    qrels/test.tsv            learned from qrels/train.tsv
    qrels/dev.tsv             likewise, where there is no test split; and once more with all judgements of a
                              quarter of the documents taken out of the training data
    --few                     as many queries drawn from those that are learned from, in place of the others

A query is seen if a document that is relevant to it is so to a training query. In the case of the quarter,
"unseen" are the queries with a relevant document in it: the other relevant ones are taken out of ranking and
judgements. Intervals are those of the difference from hybrid. Memory is resident memory of the process at
the peak of a training, and before it with its modules, encoder and collection loaded.

Each case is a line of the log: with the same log an interrupted run goes on, and a whole one only prints.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dsearch.threads import set_threads

set_threads()

import numpy as np

from dsearch.cli.commands.evaluate import read_judgements
from dsearch.cli.session import opened_engine
from dsearch.corpus import BeirFolder, Problems
from dsearch.engine import UNTRAINED, Collection, QueryStates, SearchEngine, System, make_run
from dsearch.evaluation import (
    Qrels,
    Run,
    cross_validation,
    evaluate,
    paired_bootstrap,
    read_folds,
    split_seen,
)
from dsearch.jobs import TrainingJob
from dsearch.training import TrainingResult, run_training
from dsearch.training.tune import head_of
from dsearch.types import Query

MEASURE = "nDCG@10"
COLLECTIONS = ("cranfield", "nfcorpus", "scifact", "squad-sentences")
ROWS = ("dense", "keyword", "hybrid", "tuned", "memory", "head", "live")
SLICES = ("all", "seen", "unseen")
HIDDEN_SEED = 0  # of the quarter of the documents
FEW_SEED = 0  # of a few training queries
DEPTH = 100
HIDDEN_DEPTH = 1000  # so that ten remain where a query's seen documents are taken out
QUICK_QUERIES, QUICK_EPOCHS = 60, 2


@dataclass(frozen=True, slots=True)
class Case:
    """One training and its test queries.

    Attributes:
        table: heading under which its queries are counted.
        part: fold, or "" for the only one.
        texts: query id → text.
        train, test: judgements.
        exclude: query id → documents without a part.
        hidden: documents without training judgements; None: "unseen" is by query.
    """

    table: str
    part: str
    texts: dict[str, str]
    train: Qrels
    test: Qrels
    exclude: Mapping[str, set[str]]
    hidden: frozenset[str] | None = None


@dataclass(slots=True)
class Table:
    """Values of a collection's test queries by row and slice, and what was paid for them."""

    values: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    live: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    base_mb: float = 0.0
    peak_mb: float = 0.0

    def add(self, line: dict[str, Any]) -> None:
        for row, slices in line["values"].items():
            for name, values in slices.items():
                self.values.setdefault(row, {}).setdefault(name, {}).update(values)
        self.live.append(line["live"])
        self.cpu_s += line["cpu_s"]
        if line.get("peak_mb", 0.0) > self.peak_mb:
            self.base_mb, self.peak_mb = line["base_mb"], line["peak_mb"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--home", type=Path, default=Path("index"))
    parser.add_argument("--collections", nargs="+", default=list(COLLECTIONS), metavar="NAME")
    parser.add_argument("--log", type=Path, help="JSON lines; gone on with if it is there")
    parser.add_argument("--seed", type=int, default=0, help="of the training [0, the default]")
    parser.add_argument("--fold-seed", type=int, help="five folds by it, in place of those of folds.json")
    parser.add_argument("--few", nargs="+", type=int, default=[], metavar="N", help="training queries only")
    parser.add_argument("--quick", action="store_true", help="few queries and epochs, to see that it runs")
    arguments = parser.parse_args()
    done = logged(arguments.log)
    tables: dict[str, Table] = {}
    with opened_engine(arguments.home, readonly=False) as (engine, _):
        for name in arguments.collections:
            every = cases(arguments.data / name, arguments.quick, arguments.fold_seed)
            for case in fewer(next(every), arguments.few) if arguments.few else every:
                key = f"{case.table}/{case.part}/{arguments.seed}/{'quick' if arguments.quick else 'full'}"
                if arguments.fold_seed is not None:
                    key += f"/{arguments.fold_seed}"
                if key not in done:
                    collection = indexed(engine, arguments.data / name)
                    done[key] = measured(collection, case, arguments)
                    if arguments.log is not None:
                        with arguments.log.open("a", encoding="utf-8") as log:
                            log.write(json.dumps({"case": key, **done[key]}) + "\n")
                tables.setdefault(case.table, Table()).add(done[key])
    show(tables)


def logged(path: Path | None) -> dict[str, dict[str, Any]]:
    """Cases that an earlier run has finished."""
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return {line["case"]: line for line in lines}


def indexed(engine: SearchEngine, folder: Path) -> Collection:
    """The collection of a folder's name, indexed if need be; untrained."""
    if folder.name not in engine.names():
        print(f"indexing {folder.name}", file=sys.stderr, flush=True)
        engine.create(folder.name).ingest(BeirFolder(folder).documents(Problems()))
    collection = engine.collection(folder.name)
    if collection.live_model != UNTRAINED:
        collection.promote(UNTRAINED)
    return collection


def cases(folder: Path, quick: bool, fold_seed: int | None = None) -> Iterator[Case]:
    """Trainings of a collection."""
    pairs, folds = folder / "source_docs.tsv", folder / "folds.json"
    split = "test" if (folder / "qrels" / "test.tsv").is_file() else "dev"
    judged = read_judgements(folder, split, pairs if pairs.is_file() else None)
    texts = {query.id: query.text for query in BeirFolder(folder).queries(Problems())}
    if folds.is_file():
        parts = read_folds(folds) if fold_seed is None else drawn_folds(judged.qrels, fold_seed)
        turns = list(cross_validation(judged.qrels, parts))
        for fold in turns[:1] if quick else turns:
            case = Case(folder.name, str(fold.number), texts, fold.train, fold.test, judged.exclude)
            yield shortened(case) if quick else case
        return
    training = read_judgements(folder, "train", None).qrels
    whole = Case(folder.name, "", texts, training, judged.qrels, judged.exclude)
    yield shortened(whole) if quick else whole
    if split == "dev":
        documents = sorted({id for of in training.values() for id in of})
        drawn = np.random.default_rng(HIDDEN_SEED).choice(len(documents), len(documents) // 4, replace=False)
        hidden = frozenset(documents[at] for at in drawn)
        left = {query: {d: g for d, g in of.items() if d not in hidden} for query, of in training.items()}
        left = {query: of for query, of in left.items() if of}
        case = replace(whole, table=f"{folder.name}, a quarter unjudged", train=left, hidden=hidden)
        yield shortened(case) if quick else case


def drawn_folds(judged: Qrels, seed: int) -> dict[str, int]:
    """Five folds of judged queries, drawn."""
    order = np.random.default_rng(seed).permutation(sorted(judged)).tolist()
    return {query: at % 5 for at, query in enumerate(order)}


def fewer(case: Case, sizes: list[int]) -> Iterator[Case]:
    """The same with so many training queries; those of a smaller number are among those of a larger one."""
    order = np.random.default_rng(FEW_SEED).permutation(sorted(case.train)).tolist()
    for size in sizes:
        train = {query: case.train[query] for query in order[:size]}
        yield replace(case, table=f"{case.table}, {len(train)} judged", train=train)


def shortened(case: Case) -> Case:
    """The same with few queries."""
    train, test = (dict(list(of.items())[:QUICK_QUERIES]) for of in (case.train, case.test))
    return replace(case, train=train, test=test)


def measured(collection: Collection, case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train as `dsearch train` does, and rank the test queries by every row."""
    print(f"{case.table} {case.part}: {len(case.train)} training queries", file=sys.stderr, flush=True)
    collection.encoder.encode_queries([next(iter(case.texts.values()))])  # loaded before memory is measured
    base_mb = resident_mb(anew=True)
    started = time.process_time()
    job = TrainingJob(
        queries=case.texts,
        judgements=case.train,
        exclude={query: sorted(ids) for query, ids in case.exclude.items() if query in case.train},
        seed=arguments.seed,
    )
    if arguments.quick:
        job = replace(job, epochs=QUICK_EPOCHS)
    learned = run_training(collection, job)
    registered = learned.register(collection, job)
    cpu_s, peak_mb = time.process_time() - started, resident_mb()
    trained = learned.result
    assert isinstance(trained, TrainingResult)
    queries = [Query(id, case.texts[id]) for id in case.test]
    states = QueryStates(collection, queries).of(UNTRAINED)
    options: dict[str, Any] = {"states": states, "exclude": case.exclude}
    options["depth"] = DEPTH if case.hidden is None else HIDDEN_DEPTH

    def values_of(system: System, head: Any = None) -> dict[str, dict[str, float]]:
        return slices_of(make_run(collection, queries, system, head=head, **options), case)

    hybrid = System("hybrid")
    values = {name: values_of(System(name)) for name in ("dense", "keyword", "hybrid")}
    values["tuned"] = values["memory"] = values["hybrid"]
    if trained.tuned is not None:
        values["tuned"] = values_of(hybrid, head_of(trained.tuned.setting, collection.store.dimension))
        values["memory"] = values_of(hybrid, trained.tuned.head)
    values["head"] = values_of(hybrid, trained.head)
    values["live"] = values_of(System("hybrid", collection.live_model))
    live = "nothing" if registered.live is None else str(trained.goes_live)
    if live == "tuned" and trained.tuned is not None:
        live = str(trained.tuned.record["scope"])
    if live == "head" and trained.head.memory is not None:
        live = "head with memory"
    collection.promote(UNTRAINED)
    verdicts = [trained.gate.to_text()] + ([] if trained.tuned is None else [trained.tuned.gate.to_text()])
    print(f"  live: {live}; {cpu_s:.0f} s of CPU", *verdicts, sep="\n  ", file=sys.stderr, flush=True)
    return {
        "values": values,
        "live": live,
        "cpu_s": cpu_s,
        "base_mb": base_mb,
        "peak_mb": peak_mb,
        "verdicts": verdicts,
        "data_sha256": hashlib.sha256(json.dumps(case.train, sort_keys=True).encode()).hexdigest(),
    }


def resident_mb(*, anew: bool = False) -> float:
    """The largest resident memory so far, on Linux; `anew`: the present one, from which it is counted on."""
    if not Path("/proc/self/clear_refs").exists():
        return 0.0
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def slices_of(run: Run, case: Case) -> dict[str, dict[str, float]]:
    """The measure of each query, on all documents and by slice."""
    every = evaluate(run, case.test, [MEASURE], exclude=case.exclude)[MEASURE]
    seen, unseen = split_seen(case.test, case.train)
    slices = {"all": every, "seen": {query: every[query] for query in seen if query in every}}
    if case.hidden is None:
        return {**slices, "unseen": {query: every[query] for query in unseen if query in every}}
    others = {
        query: case.exclude.get(query, set()) | {id for id, grade in of.items() if grade > 0} - case.hidden
        for query, of in case.test.items()
    }
    return {**slices, "unseen": evaluate(run, case.test, [MEASURE], exclude=others)[MEASURE]}


def show(tables: Mapping[str, Table]) -> None:
    """Print a Markdown table of all collections, and below it what went live."""
    columns = ["collection", "slice", "queries", *ROWS, "live − hybrid", "live − better leg", "went live"]
    print("| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), sep="\n")
    for name, table in tables.items():
        for part in SLICES:
            values = {row: of[part] for row, of in table.values.items()}
            if not values["hybrid"]:
                continue
            means = {row: float(np.mean(list(of.values()))) for row, of in values.items()}
            leg = max(("dense", "keyword"), key=lambda one: means[one])
            counted = {what: table.live.count(what) for what in sorted(set(table.live))}
            told = ", ".join(what if len(table.live) == 1 else f"{what} × {n}" for what, n in counted.items())
            cells = [
                name,
                part,
                f"{len(values['hybrid'])}",
                *(f"{means[row]:.4f}" for row in ROWS),
                interval(values["live"], values["hybrid"]),
                interval(values["live"], values[leg]),
                told if part == "all" else "",
            ]
            print("| " + " | ".join(cells) + " |")
    for name, table in tables.items():
        spent = f"{table.cpu_s:.0f} s of CPU for {len(table.live)} training(s)"
        print(f"\n{name}: {spent}; {table.peak_mb:.0f} MB at most, of which {table.base_mb:.0f} before")


def interval(first: Mapping[str, float], second: Mapping[str, float]) -> str:
    """The mean difference with its 95 % interval."""
    found = paired_bootstrap(first, second)
    return f"{found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"


if __name__ == "__main__":
    main()

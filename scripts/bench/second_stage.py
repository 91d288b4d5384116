"""A second stage: what it brings untrained and trained, and what it costs.

    dsearch index DATA/cranfield -c cranfield --second-stage
    python scripts/bench/second_stage.py DATA/cranfield DATA/scifact

For every collection, of the folder's name and indexed with --second-stage: nDCG@10 of hybrid search; of the
untrained second stage behind it; and of one that is fitted as `dsearch train` does it, on folds
(`folds.json`), else on the training queries (`qrels/train.tsv`), and scored on the other fold or on
`qrels/test.tsv` (with --on dev on `qrels/dev.tsv`). "unseen": queries none of whose relevant documents was
judged in training. With --on train nothing is scored on test judgements: the training queries are split into
five folds. "python": the documentation of Python, as the demo reads it (its home, or a collection of
that name); its summary lines are queries, nothing is fitted on it. Intervals are bootstrapped over queries,
95 %. Costs: bytes of a document's tokens; CPU time of encoding with tokens through that without, alternating
on the same documents; CPU milliseconds of a query with 50 candidates and of one without a second stage, the
queries encoded anew, one thread.

    python scripts/bench/second_stage.py DATA/cranfield --costs --most 100 --record second-stage-costs

With --costs the costs alone, of the encoder as installed: the exported one, which is waited for.

    python scripts/bench/second_stage.py DATA/cranfield --live

With --live each turn is a whole training with the defaults of `dsearch train`, and the scored queries are
answered by what it puts live, with its second stage and without it: the gain of the stage over what would
answer in its place. A turn whose gate refuses the stage has the same answers in both.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from dsearch.threads import set_threads

set_threads(1)

import numpy as np
import torch
from records import Record, describe_machine, present_commit, today, write_record

from dsearch.cli.commands.evaluate import read_judgements
from dsearch.corpus import BeirFolder, Problems, python_corpus
from dsearch.encoder import AutomaticEncoder, encoder_in_use
from dsearch.engine import Collection, SearchEngine, make_run
from dsearch.engine.indexing.chunking import PassageLengths, encode
from dsearch.engine.search.queries import tokens_of
from dsearch.evaluation import (
    Qrels,
    bootstrap_columns,
    cross_validation,
    evaluate,
    read_folds,
    split_seen,
    without_pairs,
)
from dsearch.jobs import TrainingJob
from dsearch.training import Examples, TrainingResult, examples_from_judgements, run_training
from dsearch.training.finetune.second_stage import stage_in_words
from dsearch.training.finetune.stage_fit import (
    TERMS_OF_UNTRAINED,
    CandidateLists,
    chosen_method,
    fitted,
    lists_of,
)
from dsearch.training.relevant import ndcg_at_10
from dsearch.types import Query

COST_NOTES = [
    (
        "Indexing: CPU time of encoding documents with their tokens through that without, on the same ones "
        "by turns. Fitting the projection encodes 64 documents and 48 paragraphs of the guide once more, "
        "whatever the size of the collection."
    ),
    "A query: median CPU time of a whole search, every query encoded anew, one stage and two by turns.",
]
MEASURE = "nDCG@10"
FOLDS = 5
PYTHON = "python"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--home", type=Path, default=Path("index"))
    parser.add_argument(
        "--on", choices=("test", "dev", "train"), default="test", help="the split that is scored"
    )
    parser.add_argument("--most", type=int, default=1000, help="queries of a collection, drawn, at most")
    parser.add_argument("--encoded", type=int, default=64, help="documents that are encoded to measure")
    parser.add_argument("--live", action="store_true", help="whole trainings; what they put live")
    parser.add_argument("--costs", action="store_true", help="costs alone, as installed")
    parser.add_argument("--record", metavar="NAME", help="write the table of --costs as results/NAME.json")
    arguments = parser.parse_args()
    with SearchEngine(arguments.home, readonly=True) as engine:
        rows = [row_of(folder, engine.collection(folder.name), arguments) for folder in arguments.folders]
    names = list(rows[0])
    if arguments.record:
        recorded(arguments, names, rows)
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        print("| " + " | ".join(str(row[name]) for name in names) + " |")


def row_of(folder: Path, collection: Collection, arguments: argparse.Namespace) -> dict[str, object]:
    on, most, encoded = arguments.on, arguments.most, arguments.encoded
    if arguments.live:
        return live_row(folder, collection, on, most)
    if arguments.costs:
        return cost_row(folder, collection, most, encoded)
    values: dict[str, list[np.ndarray]] = {"hybrid": [], "untrained": [], "trained": []}
    unseen: list[np.ndarray] = []
    ways: list[str] = []
    texts: list[str] = []
    for training, scored in turns(folder, collection, on, most):
        judged = of_examples(collection, scored)
        weights = {"hybrid": torch.zeros(judged.features.shape[2]), "untrained": TERMS_OF_UNTRAINED}
        if training is not None:
            learned = of_examples(collection, training)
            way = chosen_method(learned, training, 0)
            ways.append(f"γ {way.strength:g}" if way.pull is None else f"linear, λ {way.pull:g}")
            weights["trained"] = fitted(learned, way)
            taught = np.unique(np.concatenate([at for at, _ in training.relevant]))
            unseen.append(np.array([not np.isin(at, taught).any() for at, _ in scored.relevant]))
        for name, of in weights.items():
            values[name].append(ndcg_at_10(judged.ranked(of), scored.relevant))
        texts += scored.texts
    joined = {name: np.concatenate([*of, np.zeros(0)]) for name, of in values.items()}
    new = np.concatenate([*unseen, np.zeros(0)]).astype(bool)
    documents = len(collection.snapshot.generation)
    once, twice = query_ms(collection, texts[:100])
    return {
        "collection": folder.name,
        "documents": documents,
        "queries": len(joined["hybrid"]),
        "hybrid": f"{joined['hybrid'].mean():.4f}",
        "untrained": difference(joined["untrained"], joined["hybrid"]),
        "trained": difference(joined["trained"], joined["hybrid"]) if ways else "",
        "unseen": difference(joined["trained"][new], joined["hybrid"][new]) if new.any() else "",
        "chosen": "; ".join(dict.fromkeys(ways)),
        "KB a document": f"{kilobytes(collection):.1f}",
        "indexing CPU": f"{indexing_ratio(collection, encoded):.2f} ×",
        "CPU ms a query": f"{once:.1f} → {twice:.1f}",
    }


def cost_row(folder: Path, collection: Collection, most: int, encoded: int) -> dict[str, object]:
    """Costs with the encoder as installed."""
    encoder = collection.encoder
    if isinstance(encoder, AutomaticEncoder):
        encoder.wait()
    in_use = encoder_in_use(encoder)
    assert in_use is not None
    texts = [query.text for query in BeirFolder(folder).queries(Problems())][:most]
    once, twice = query_ms(collection, texts)
    return {
        "collection": folder.name,
        "documents": len(collection.snapshot.generation),
        "encoder": in_use.runs_by,
        "queries": len(texts),
        "KB a document (aim 20)": f"{kilobytes(collection):.1f}",
        "indexing CPU (aim 1.25)": f"{indexing_ratio(collection, encoded):.2f} ×",
        "CPU ms a query": f"{once:.1f}",
        "two stages (aims 15, 2 ×)": f"{twice:.1f}, {twice / once:.2f} ×",
    }


def kilobytes(collection: Collection) -> float:
    """Kilobytes of a document's tokens on the disk."""
    generation = collection.snapshot.generation
    disk = sum(path.stat().st_size for path in (generation.folder / "tokens").iterdir())
    return disk / len(generation) / 1000


def recorded(arguments: argparse.Namespace, names: list[str], rows: list[dict[str, object]]) -> None:
    assert arguments.costs, "--record is of --costs"
    folders = " ".join(f"DATA/{folder.name}" for folder in arguments.folders)
    command = [
        *(
            f"dsearch index DATA/{of.name}/corpus.jsonl -c {of.name} --second-stage"
            for of in arguments.folders
        ),
        (
            f"python scripts/bench/second_stage.py {folders} --costs --most {arguments.most} --encoded "
            f"{arguments.encoded} --record {arguments.record}"
        ),
    ]
    title = "Costs of a second stage with the encoder as installed, 50 candidates, one thread"
    cells = [[str(row[name]) for name in names] for row in rows]
    write_record(
        arguments.record,
        Record(
            *("Retrieval", title, command, today(), present_commit(), describe_machine(), names, cells),
            notes=COST_NOTES,
        ),
    )


def difference(after: np.ndarray, before: np.ndarray) -> str:
    of = bootstrap_columns((after - before)[:, None])[0]
    return f"{after.mean():.4f} ({of.mean:+.4f} [{of.low:+.4f}, {of.high:+.4f}])"


def of_examples(collection: Collection, examples: Examples) -> CandidateLists:
    tokens = tokens_of(collection, examples.texts, examples.snapshot)
    return lists_of(examples, tokens, collection.head("v0"), range(len(examples)))


def live_row(folder: Path, collection: Collection, on: str, most: int) -> dict[str, object]:
    """What goes live after a training with the defaults, with its second stage and without it."""
    with_stage: dict[str, float] = {}
    without: dict[str, float] = {}
    untrained: dict[str, float] = {}
    new: set[str] = set()
    live: list[str] = []
    texts, exclude, parts = splits(folder, on, most)
    for training, scored in parts:
        assert training is not None, f"{folder}: nothing to learn from"
        left_out = {query: sorted(exclude[query]) for query in training if query in exclude}
        job = TrainingJob(queries=texts, judgements=training, exclude=left_out)
        trained = run_training(collection, job)
        result, stage = trained.result, trained.second_stage
        assert isinstance(result, TrainingResult)
        head = collection.head("v0")
        if result.goes_live is not None:
            head = result.head if result.goes_live == "head" or result.tuned is None else result.tuned.head
        served = head if stage is None or not stage.passed else head.reranking(stage.stage)
        live.append(f"{result.goes_live or 'untrained'}{'' if served is head else ' + stage'}")
        print(
            f"  {folder.name}: {live[-1]}; {stage and stage_in_words(stage.record)['text']}",
            file=sys.stderr,
            flush=True,
        )
        queries = [Query(query, texts[query]) for query in scored]
        for values, of in ((untrained, collection.head("v0")), (without, head), (with_stage, served)):
            run = make_run(collection, queries, head=of, depth=10, exclude=exclude)
            values.update(evaluate(run, scored, [MEASURE], exclude=exclude)[MEASURE])
        new.update(split_seen(scored, training)[1])
    columns = [
        np.array([values[query] for query in with_stage]) for values in (untrained, without, with_stage)
    ]
    unseen = np.array([query in new for query in with_stage])
    return {
        "collection": folder.name,
        "queries": len(with_stage),
        "hybrid": f"{columns[0].mean():.4f}",
        "without the stage": difference(columns[1], columns[0]),
        "with it, over without": difference(columns[2], columns[1]),
        "unseen": difference(columns[2][unseen], columns[1][unseen]) if unseen.any() else "",
        "went live": "; ".join(f"{name} × {live.count(name)}" for name in dict.fromkeys(live)),
    }


def turns(
    folder: Path, collection: Collection, on: str, most: int
) -> Iterator[tuple[Examples | None, Examples]]:
    if folder.name == PYTHON:
        corpus = python_corpus()
        texts = {query.id: query.text for query in corpus.queries}
        yield None, examples_from_judgements(collection, texts, some(corpus.qrels, most))
        return
    texts, exclude, parts = splits(folder, on, most)
    for training, scored in parts:
        yield (
            examples_from_judgements(collection, texts, training, exclude),
            examples_from_judgements(collection, texts, scored, exclude),
        )


def splits(
    folder: Path, on: str, most: int
) -> tuple[dict[str, str], Mapping[str, set[str]], list[tuple[Qrels, Qrels]]]:
    """Texts of the queries, documents that take no part, and judgements to learn from and to be scored on."""
    pairs, folds = folder / "source_docs.tsv", folder / "folds.json"
    judged = read_judgements(folder, "dev" if on == "dev" else "test", pairs if pairs.is_file() else None)
    texts = {query.id: query.text for query in BeirFolder(folder).queries(Problems())}
    qrels = without_pairs(judged.qrels, judged.exclude)
    if folds.is_file():
        crossed = cross_validation(qrels, read_folds(folds))
        return texts, judged.exclude, [(some(fold.train, most), some(fold.test, most)) for fold in crossed]
    assert judged.training is not None, f"{folder} has neither folds.json nor qrels/train.tsv"
    if on != "train":
        return texts, judged.exclude, [(some(judged.training, most), some(qrels, most))]
    names = sorted(some(judged.training, most))
    fold = np.random.default_rng(0).permutation(len(names)) % FOLDS
    parts: list[tuple[Qrels, Qrels]] = []
    for number in range(FOLDS):
        mine = {name: judged.training[name] for name, at in zip(names, fold, strict=True) if at == number}
        parts.append(({name: judged.training[name] for name in names if name not in mine}, mine))
    return texts, judged.exclude, parts


def some(judgements: Qrels, most: int) -> Qrels:
    if len(judgements) <= most:
        return judgements
    order = np.random.default_rng(0).permutation(len(judgements))[:most]
    names = sorted(judgements)
    return {names[at]: judgements[names[at]] for at in sorted(order)}


def indexing_ratio(collection: Collection, count: int) -> float:
    """CPU time of encoding with tokens through that without, after one round that counts for nothing."""
    rows = collection.store.rows()
    spread = rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64)]
    documents = list(collection.store.documents(spread))
    cutting = PassageLengths.of(collection.store)
    seconds = np.zeros(2)
    for turn in range(4):
        for which in (0, 1):
            started = time.process_time()
            if which:
                collection.tokens.encode(collection.encoder, documents)
            else:
                encode(collection.encoder, documents, cutting)
            seconds[which] += (time.process_time() - started) if turn else 0.0
    return float(seconds[1] / seconds[0])


def query_ms(collection: Collection, texts: list[str]) -> tuple[float, float]:
    """Median CPU milliseconds of a search with one stage and with two; alternating, every query encoded."""
    spent: tuple[list[float], list[float]] = ([], [])
    for text in texts:
        for stages in (1, 2):
            collection.query_cache.clear()
            collection.query_token_cache.clear()
            started = time.process_time()
            collection.search(text, stages=stages)
            spent[stages - 1].append((time.process_time() - started) * 1000)
    return float(np.median(spent[0][3:])), float(np.median(spent[1][3:]))


if __name__ == "__main__":
    main()

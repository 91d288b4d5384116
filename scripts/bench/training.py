"""What training brings beside the usual baselines: same encoder, data, split, machine, one run.

    python scripts/bench/training.py DATA/scifact --home index
    python scripts/bench/training.py DATA/cranfield --home index     # five folds, source documents left out

    python scripts/bench/training.py DATA/scifact --rows frozen,head,query        # some of the rows
    python scripts/bench/training.py DATA/scifact --rows frozen,st,full           # minutes an epoch on a CPU

Rows, by the names that `--rows` takes:
    frozen   dense, BM25, their reciprocal rank fusion (Cormack et al. 2009, k = 60), hybrid with weight 1
    tuned    keyword weight, k1 and b, and hop strength
    head     a head, by the defaults of `dsearch train`: tuned first, hop strength chosen after training
    query    the query encoder with it (LoRA)
    judged   the same with all of the encoder's weights, over the judged documents alone: for searches whose
             documents are mostly unseen (results.py; the setting was chosen on training queries)
    st       sentence-transformers' fine-tuning of the whole encoder: MultipleNegativesRankingLoss and its
             trainer's defaults, 1 to `--st-epochs` epochs, the best by a tenth of the training queries
    full     the whole encoder by dsearch; keyword weight and query keys as held-out queries choose
What dsearch trains stands there as trained and as the gate would have it ("gated": what answers in the end:
the head, the tuned search, or what answered before). Seconds: of training, and until it could answer (st and
full encode every document again); the same of CPU, in this process, which a busy machine distorts less.

The collection of the folder's name must be indexed. Folders with `folds.json` are cross-validated, without
`source_docs.tsv` if there is one; others learn from qrels/train and are scored on qrels/test.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dsearch.threads import set_threads

set_threads()

import numpy as np
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.cli.commands.evaluate import Judgements, read_judgements
from dsearch.corpus import BeirFolder, Problems
from dsearch.encoder import tuned as tuned_encoder
from dsearch.engine import Collection, SearchEngine, System, make_run
from dsearch.evaluation import (
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
from dsearch.training import (
    Examples,
    FullOptions,
    Observer,
    TrainingOptions,
    TrainingResult,
    examples_from_judgements,
    finetune,
    finetune_full,
    query_options,
    tune,
)
from dsearch.training.finetune.full import further_of
from dsearch.training.losses.passages import FurtherPassages
from dsearch.training.relevant import ndcg_at_10
from dsearch.types import Progress, Query

MEASURES = ["nDCG@10", "Recall@100"]
RRF_K = 60
ROWS = ("frozen", "tuned", "head", "query", "judged", "st", "full")
JUDGED = {"objective": "judged", "epochs": 2, "encoder_method": "all", "encoder_learning_rate": 2e-5}
DEFAULT_ROWS = "frozen,tuned,head"
DEV_DOCUMENTS = 1000  # beside the answers: what an epoch of st is judged by


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock, and of CPU."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)

    @classmethod
    def so_far(cls) -> Cost:
        return cls(time.monotonic(), time.process_time())


NOTHING = Cost()


@dataclass
class Results:
    """Values of every row, gathered over folds; what it cost to train, and until it could answer."""

    values: dict[str, Values] = field(default_factory=dict)
    training: dict[str, Cost] = field(default_factory=dict)
    live: dict[str, Cost] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=lambda: {"seen": [], "unseen": []})

    def add(self, name: str, values: Values, live: Cost, training: Cost | None = None) -> None:
        row = self.values.setdefault(name, {measure: {} for measure in MEASURES})
        for measure in MEASURES:
            row[measure].update(values[measure])
        self.live[name] = self.live.get(name, Cost()) + live
        self.training[name] = self.training.get(name, Cost()) + (live if training is None else training)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--home", type=Path, default=Path("index"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--objective", default="listwise")
    parser.add_argument("--rows", default=DEFAULT_ROWS, help=f"of {', '.join(ROWS)} [{DEFAULT_ROWS}]")
    parser.add_argument("--query-epochs", type=int, help="of row query [its default]")
    parser.add_argument("--st-epochs", type=int, default=4)
    parser.add_argument("--full-epochs", type=int, help="of row full [its default]")
    parser.add_argument("--folds", type=int, default=TrainingOptions().folds, help="held out, head and query")
    parser.add_argument("--json", type=Path, help="also write everything here")
    arguments = parser.parse_args()
    arguments.rows = arguments.rows.split(",")
    if unknown := set(arguments.rows) - set(ROWS):
        parser.error(f"--rows: {', '.join(sorted(unknown))}; use some of {', '.join(ROWS)}")
    everything: dict[str, Any] = {}
    with SearchEngine(arguments.home, readonly=True) as engine:
        for folder in arguments.folders:
            collection = engine.collection(folder.name)
            results = run_rows(folder, collection, arguments)
            report = build_report(results.values, baseline="hybrid", groups=results.groups)
            print(f"\n## {folder.name}\n\n{report.to_text()}\n")
            for name, live in results.live.items():
                training = results.training[name]
                print(
                    f"{name}: {training.wall_s:.1f} s of training, {live.wall_s:.1f} s until it could answer "
                    f"(CPU {training.cpu_s:.1f} s, {live.cpu_s:.1f} s)"
                )
            everything[folder.name] = {
                **report.to_dict(),
                "training": {name: asdict(cost) for name, cost in results.training.items()},
                "until_live": {name: asdict(cost) for name, cost in results.live.items()},
            }
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
            examples = examples_from_judgements(collection, texts, fold.train, judged.exclude)
            yield Turn(examples, fold.train, fold.test, judged)
        return
    assert judged.training is not None, f"{folder} has neither folds.json nor qrels/train.tsv"
    examples = examples_from_judgements(collection, texts, judged.training, judged.exclude)
    yield Turn(examples, judged.training, qrels, judged)


def run_rows(folder: Path, collection: Collection, arguments: argparse.Namespace) -> Results:
    results, rows = Results(), arguments.rows
    chosen = {"seed": arguments.seed, "objective": arguments.objective, "folds": arguments.folds}
    for turn in turns(folder, collection):
        for name, members in zip(("seen", "unseen"), split_seen(turn.test, turn.train), strict=True):
            results.groups[name].extend(members)

        def scored(
            run: Run, name: str, live: Cost = NOTHING, training: Cost | None = None, of: Turn = turn
        ) -> None:
            values = evaluate(run, of.test, MEASURES, exclude=of.judged.exclude)
            results.add(name, values, live, training)

        def ranked(
            system: System | None = None,
            head: Head | None = None,
            states: np.ndarray | None = None,
            of: Turn = turn,
        ) -> Run:
            return make_run(
                collection, of.queries, system, head=head, states=states, exclude=of.judged.exclude
            )

        dense, keyword, hybrid = ranked(System("dense")), ranked(System("keyword")), ranked()
        if "frozen" in rows:
            scored(dense, "dense")
            scored(keyword, "BM25")
            scored(fused(dense, keyword), "RRF")
        scored(hybrid, "hybrid")
        if "tuned" in rows:
            started = Cost.so_far()
            tuned = tune(turn.examples, seed=arguments.seed)
            cost = Cost.so_far() - started
            run = ranked(head=tuned.head)
            scored(run, "tuned", cost)
            scored(run if tuned.gate.passed else hybrid, "tuned, gated", cost)
        if "head" in rows:
            started = Cost.so_far()
            trained = finetune(turn.examples, TrainingOptions(**chosen))
            cost = Cost.so_far() - started
            tell("head", trained)
            run = ranked(head=trained.head)
            scored(run, "head", cost)
            scored(answering(trained, run, hybrid, ranked), "head, gated", cost)
        epochs = {"epochs": arguments.query_epochs} if arguments.query_epochs else {}
        for name, further in (("query", epochs), ("judged", JUDGED)):
            if name not in rows:
                continue
            options = query_options(**{**chosen, **further})
            started = Cost.so_far()
            trained = finetune(turn.examples, options, encoder=collection.encoder)
            cost = Cost.so_far() - started
            tell(name, trained)
            run = ranked(head=trained.head, states=query_states(collection, trained, turn))
            scored(run, name, cost)
            scored(answering(trained, run, hybrid, ranked), f"{name}, gated", cost)
        if "st" in rows:
            for name, (run, training, live) in sentence_transformers_rows(
                collection, turn, arguments
            ).items():
                scored(run, name, live, training)
        if "full" in rows:
            epochs = {"epochs": arguments.full_epochs} if arguments.full_epochs else {}
            encoding: list[Cost] = []

            class WhenEncodingBegins(Observer):
                def progress(self, progress: Progress, of: list[Cost] = encoding) -> None:
                    if progress.stage == "encode" and not of:
                        of.append(Cost.so_far())

            started = Cost.so_far()
            trained = finetune_full(
                collection,
                turn.examples,
                FullOptions(seed=arguments.seed, **epochs),
                observer=WhenEncodingBegins(),
            )
            cost = Cost.so_far() - started
            tell("full", trained)
            assert trained.documents is not None
            states = query_states(collection, trained, turn)
            further = further_of(trained.documents)
            run = exact_run(
                collection, turn, trained.head, states, trained.documents.embeddings, further=further
            )
            scored(run, "full", cost, encoding[0] - started)
            scored(answering(trained, run, hybrid, ranked), "full, gated", cost, encoding[0] - started)
    return results


def answering(trained: TrainingResult, run: Run, hybrid: Run, ranked: Callable[..., Run]) -> Run:
    """What answers after the gate: the trained model, the tuned search or the untrained one."""
    if trained.goes_live == "head":
        return run
    return hybrid if trained.tuned is None or trained.goes_live is None else ranked(head=trained.tuned.head)


def tell(name: str, trained: TrainingResult) -> None:
    print(f"{name}: {trained.gate.verdict}: {trained.gate.reason}", file=sys.stderr, flush=True)


def query_states(collection: Collection, trained: TrainingResult, turn: Turn) -> np.ndarray:
    """The test queries by the encoder that was trained."""
    assert trained.encoder is not None
    encoder = tuned_encoder(collection.encoder, trained.encoder, collection.encoder.identity)
    return encoder.encode_queries([query.text for query in turn.queries])


@torch.inference_mode()
def exact_run(
    collection: Collection,
    turn: Turn,
    head: Head,
    states: np.ndarray,
    corpus: np.ndarray,
    *,
    further: FurtherPassages | None = None,
    keywords: bool = True,
    depth: int = 100,
) -> Run:
    """Every document scored by a head, its embeddings given, and those of its further passages."""
    snapshot, run = turn.examples.snapshot, {}
    visible = snapshot.visible()
    embeddings = torch.as_tensor(np.asarray(corpus, np.float32))
    ids = np.array(collection.ids_at(snapshot, visible[None])[0], dtype=object)
    for query, state in zip(turn.queries, torch.as_tensor(states), strict=True):
        folded = head.fold(head.queries(state[None]))
        every = folded @ embeddings.T
        if further is not None:
            every, _ = further.taken(folded, every)
        scores = every[0, 0].numpy()[visible]
        if keywords:
            found = snapshot.all_keyword_scores([query.text])[0][visible]
            scores = scores + head.keyword_weight.item() * found
        left_out = turn.judged.exclude.get(query.id, set())
        order = np.argsort(-scores, kind="stable")[: depth + len(left_out)]
        run[query.id] = [(ids[i], float(scores[i])) for i in order if ids[i] not in left_out][:depth]
    return run


def sentence_transformers_rows(
    collection: Collection, turn: Turn, arguments: argparse.Namespace
) -> dict[str, tuple[Run, Cost, Cost]]:
    """name → (run, cost of training, cost until it could answer): dense, and with keywords."""
    import copy

    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    snapshot, store = turn.examples.snapshot, collection.store
    encoder = copy.deepcopy(collection.encoder)
    generator = np.random.default_rng(arguments.seed)
    order = generator.permutation(len(turn.examples))
    dev, train = np.split(order, [len(order) // 10])
    pairs = [(turn.examples.texts[i], int(at)) for i in train for at in turn.examples.relevant[i][0]]
    texts = store.contents(snapshot.rows(np.array([at for _, at in pairs])))
    data = Dataset.from_dict({"anchor": [query for query, _ in pairs], "positive": texts})
    answers = np.unique(np.concatenate([turn.examples.relevant[i][0] for i in dev]))
    others = generator.permutation(snapshot.visible())[:DEV_DOCUMENTS]
    pool = np.union1d(answers, others)
    dev_texts = store.contents(snapshot.rows(pool))
    relevant = [
        (np.searchsorted(pool, turn.examples.relevant[i][0]), turn.examples.relevant[i][1]) for i in dev
    ]
    best, best_state, best_training = -1.0, {}, NOTHING
    loss = MultipleNegativesRankingLoss(encoder.model)
    for epoch in range(1, arguments.st_epochs + 1):
        # Each number of epochs is a run of its own: the learning rate falls to zero at its end.
        encoder.model.load_state_dict(collection.encoder.model.state_dict())
        started = Cost.so_far()
        settings = SentenceTransformerTrainingArguments(
            output_dir=tempfile.mkdtemp(),
            num_train_epochs=epoch,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=arguments.seed,
            use_cpu=True,
        )
        SentenceTransformerTrainer(encoder.model, settings, train_dataset=data, loss=loss).train()
        training = Cost.so_far() - started
        queries = encoder.encode_queries([turn.examples.texts[i] for i in dev])
        top = np.argsort(-queries @ encoder.encode_documents(dev_texts).T, axis=1, kind="stable")[:, :10]
        value = float(ndcg_at_10(top, relevant).mean())
        print(f"st, {epoch} epochs: {value:.4f} on dev, {training}", file=sys.stderr, flush=True)
        if value > best:
            best, best_training = value, training
            best_state = {name: weight.clone() for name, weight in encoder.model.state_dict().items()}
    encoder.model.load_state_dict(best_state)
    encoder.eval()
    started = Cost.so_far()
    corpus = np.zeros((snapshot.positions, store.dimension), np.float32)
    corpus[snapshot.visible()] = encoder.encode_documents(store.contents(snapshot.rows(snapshot.visible())))
    live = best_training + (Cost.so_far() - started)
    states = encoder.encode_queries([query.text for query in turn.queries])
    head = collection.head("v0")
    return {
        "st, dense": (
            exact_run(collection, turn, head, states, corpus, keywords=False),
            best_training,
            live,
        ),
        "st, hybrid": (exact_run(collection, turn, head, states, corpus), best_training, live),
    }


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


if __name__ == "__main__":
    main()

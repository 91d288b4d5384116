"""What training brings beside the usual baselines: same encoder, data, split, machine, one run.

    python scripts/bench_training.py DATA/scifact --home index
    python scripts/bench_training.py DATA/cranfield --home index     # five folds, source documents left out
    python scripts/bench_training.py DATA/scifact --null-heads 200   # how often the gate lets chance through

    python scripts/bench_training.py DATA/scifact --rows frozen,head,query        # some of the rows
    python scripts/bench_training.py DATA/scifact --rows frozen,st,full           # minutes an epoch on a CPU

Rows, by the names that `--rows` takes:
    frozen   dense, BM25, their reciprocal rank fusion (Cormack et al. 2009, k = 60), hybrid with weight 1
    tuned    keyword weight and hop strength
    head     a head trained from the untrained and, with the row tuned, from the tuned search
    query    the query encoder with it (LoRA)
    st       sentence-transformers' fine-tuning of the whole encoder: MultipleNegativesRankingLoss and its
             trainer's defaults, 1 to `--st-epochs` epochs, the best by a tenth of the training queries
    full     the whole encoder by dsearch
What dsearch trains stands there as trained and as the gate would have it ("gated": what answers in the end).
Seconds: of training, and until it could answer (st and full encode every document again).

The collection of the folder's name must be indexed. Folders with `folds.json` are cross-validated, without
`source_docs.tsv` if there is one; others learn from qrels/train and are scored on qrels/test.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
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
from dsearch.encoder import tuned as tuned_encoder  # noqa: E402
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
    FullOptions,
    Gate,
    Trained,
    TrainingOptions,
    examples_from_judgements,
    finetune,
    finetune_full,
    judge,
    query_options,
    tune,
)
from dsearch.training.holdout import HeldOut  # noqa: E402
from dsearch.training.ranking import ndcg_at_10  # noqa: E402
from dsearch.types import Progress, Query  # noqa: E402

MEASURES = ["nDCG@10", "Recall@100"]
RRF_K = 60
ROWS = ("frozen", "tuned", "head", "query", "st", "full")
DEFAULT_ROWS = "frozen,tuned,head"
DEV_DOCUMENTS = 1000  # beside the answers: what an epoch of st is judged by


@dataclass
class Results:
    """Values of every row, gathered over folds; seconds of training, and until each could answer."""

    values: dict[str, Values] = field(default_factory=dict)
    training: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=lambda: {"seen": [], "unseen": []})

    def add(self, name: str, values: Values, seconds: float, training: float | None = None) -> None:
        row = self.values.setdefault(name, {measure: {} for measure in MEASURES})
        for measure in MEASURES:
            row[measure].update(values[measure])
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.training[name] = self.training.get(name, 0.0) + (seconds if training is None else training)


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
    parser.add_argument("--null-heads", type=int, default=0, metavar="HEADS")
    parser.add_argument("--json", type=Path, help="also write everything here")
    arguments = parser.parse_args()
    arguments.rows = arguments.rows.split(",")
    if unknown := set(arguments.rows) - set(ROWS):
        parser.error(f"--rows: {', '.join(sorted(unknown))}; use some of {', '.join(ROWS)}")
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
                training = results.training[name]
                print(f"{name}: {training:.1f} s of training, {seconds:.1f} s until it could answer")
            everything[folder.name] = {
                **report.to_dict(),
                "training_seconds": results.training,
                "seconds": results.seconds,
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
            run: Run, name: str, seconds: float = 0.0, training: float | None = None, of: Turn = turn
        ) -> None:
            values = evaluate(run, of.test, MEASURES, exclude=of.judged.exclude)
            results.add(name, values, seconds, training)

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
        starts: list[tuple[str, Head | None, float]] = [("head", None, 0.0)]
        if "tuned" in rows:
            tuned = tune(turn.examples, seed=arguments.seed)
            scored(ranked(head=tuned.head), "tuned", tuned.seconds)
            kept = tuned.head if tuned.gate.passed else collection.head("v0")
            scored(ranked(head=kept), "tuned, gated", tuned.seconds)
            starts.append(("tuned head", kept, tuned.seconds))
        for name, start, before in starts if "head" in rows else []:
            trained = finetune(turn.examples, TrainingOptions(**chosen), start=start)
            tell(name, trained)
            seconds = before + trained.seconds
            scored(ranked(head=trained.head), name, seconds)
            answering = trained.head if trained.gate.passed else (start or collection.head("v0"))
            scored(ranked(head=answering), f"{name}, gated", seconds)
        if "query" in rows:
            epochs = {"epochs": arguments.query_epochs} if arguments.query_epochs else {}
            trained = finetune(turn.examples, query_options(**chosen, **epochs), encoder=collection.encoder)
            tell("query", trained)
            run = ranked(head=trained.head, states=query_states(collection, trained, turn))
            scored(run, "query", trained.seconds)
            scored(run if trained.gate.passed else hybrid, "query, gated", trained.seconds)
        if "st" in rows:
            for name, (run, training, live) in sentence_transformers_rows(
                collection, turn, arguments
            ).items():
                scored(run, name, live, training)
        if "full" in rows:
            epochs = {"epochs": arguments.full_epochs} if arguments.full_epochs else {}
            encoding: list[float] = []

            def told(progress: Progress, of: list[float] = encoding) -> None:
                if progress.stage == "encode":
                    of.append(progress.elapsed_s)

            trained = finetune_full(
                collection,
                turn.examples,
                FullOptions(seed=arguments.seed, **epochs),
                on_progress=told,
            )
            tell("full", trained)
            assert trained.documents is not None
            states = query_states(collection, trained, turn)
            run = exact_run(collection, turn, trained.head, states, trained.documents.embeddings)
            scored(run, "full", trained.seconds, trained.seconds - encoding[-1])
            answering_run = run if trained.gate.passed else hybrid
            scored(answering_run, "full, gated", trained.seconds, trained.seconds - encoding[-1])
    return results


def tell(name: str, trained: Trained) -> None:
    print(f"{name}: {trained.gate.verdict}: {trained.gate.reason}", file=sys.stderr, flush=True)


def query_states(collection: Collection, trained: Trained, turn: Turn) -> np.ndarray:
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
    keywords: bool = True,
    depth: int = 100,
) -> Run:
    """Every document scored by a head, its embeddings given."""
    snapshot, run = turn.examples.snapshot, {}
    visible = snapshot.visible()
    embeddings = torch.as_tensor(np.asarray(corpus[visible], np.float32))
    ids = np.array(collection.ids_at(snapshot, visible[None])[0], dtype=object)
    for query, state in zip(turn.queries, torch.as_tensor(states), strict=True):
        scores = (head.fold(head.queries(state[None]))[0, 0] @ embeddings.T).numpy()
        if keywords:
            found = snapshot.all_keyword_scores([query.text])[0][visible]
            scores = scores + head.keyword_weight.item() * found
        left_out = turn.judged.exclude.get(query.id, set())
        order = np.argsort(-scores, kind="stable")[: depth + len(left_out)]
        run[query.id] = [(ids[i], float(scores[i])) for i in order if ids[i] not in left_out][:depth]
    return run


def sentence_transformers_rows(
    collection: Collection, turn: Turn, arguments: argparse.Namespace
) -> dict[str, tuple[Run, float, float]]:
    """name → (run, seconds of training, seconds until it could answer): dense, and with keywords."""
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
    best, best_state, training, best_training = -1.0, {}, 0.0, 0.0
    loss = MultipleNegativesRankingLoss(encoder.model)
    for epoch in range(1, arguments.st_epochs + 1):
        # Each number of epochs is a run of its own: the learning rate falls to zero at its end.
        encoder.model.load_state_dict(collection.encoder.model.state_dict())
        started = time.monotonic()
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
        training = time.monotonic() - started
        queries = encoder.encode_queries([turn.examples.texts[i] for i in dev])
        top = np.argsort(-queries @ encoder.encode_documents(dev_texts).T, axis=1, kind="stable")[:, :10]
        value = float(ndcg_at_10(top, relevant).mean())
        print(f"st, {epoch} epochs: {value:.4f} on dev, {training:.0f} s", file=sys.stderr, flush=True)
        if value > best:
            best, best_training = value, training
            best_state = {name: weight.clone() for name, weight in encoder.model.state_dict().items()}
    encoder.model.load_state_dict(best_state)
    encoder.eval()
    started = time.monotonic()
    corpus = np.zeros((snapshot.positions, store.dimension), np.float32)
    corpus[snapshot.visible()] = encoder.encode_documents(store.contents(snapshot.rows(snapshot.visible())))
    live = best_training + time.monotonic() - started
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

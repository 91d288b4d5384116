"""What a keyword weight of the query (`dsearch train --fusion gate`) brings, on training splits.

    python scripts/bench/fusion_gate.py DATA/scifact DATA/squad-sentences --home index --seeds 0,1

The training queries are held out in folds; test judgements are not read. Without a fold, keyword weight, k1
and b, and hop strength are tuned on the others, and two heads learn from there, alike but for the gate. Then
nDCG@10 of both on the fold, after some epochs; the same where the fusion alone learned (temperature, keyword
weight and gate; projections stay the identity); and a 95 % interval of the paired difference over queries, of
each the mean over seeds. The collections of the folders' names must be indexed.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from dsearch.threads import set_threads

set_threads()

import numpy as np
import torch

from dsearch.attention.head import FUSIONS, Head
from dsearch.cli.commands.evaluate import read_judgements
from dsearch.engine import SearchEngine
from dsearch.evaluation import bootstrap_columns
from dsearch.training import Examples, TrainingOptions, examples_from_judgements, train_head, tune
from dsearch.training.gate.held_out import HeldOut, split_folds
from dsearch.training.loop.loop import Epoch
from dsearch.training.losses.objectives import listwise_cross_entropy
from dsearch.training.ranking import KeywordScores, corpus_embeddings, padded
from dsearch.training.scopes.head import head_groups, new_head

ALONE = "fusion alone"
_STEPS, _BATCH = 300, 64


@dataclass
class Found:
    """What learned, and how long → nDCG@10 of each query, summed over seeds; and the factors of a gate."""

    queries: int
    seeds: int
    sums: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    factors: defaultdict[str, list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class Fold:
    """Queries that are held out, by their numbers."""

    part: list[int]
    held_out: HeldOut


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--home", type=Path, default=Path("index"))
    parser.add_argument("--seeds", default="0", help="several with commas between")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--epochs", default="2,5,10", help="when heads are asked, commas between")
    parser.add_argument("--most", type=int, default=1500, help="queries of a collection, drawn, at most")
    arguments = parser.parse_args()
    epochs = sorted({int(one) for one in arguments.epochs.split(",")})
    print("| collection | learned | tuned | constant | gate | gate − constant | factors, 5 to 95 % |")
    print("|---|---|---|---|---|---|---|")
    with SearchEngine(arguments.home, readonly=True) as engine:
        for folder in arguments.folders:
            judged = read_judgements(folder, "train")
            texts = {query.id: query.text for query in judged.queries}
            examples = examples_from_judgements(engine.collection(folder.name), texts, judged.qrels)
            if len(examples) > arguments.most:
                order = np.random.default_rng(0).permutation(len(examples))[: arguments.most]
                examples = examples.subset(np.sort(order).tolist())
            seeds = [int(one) for one in arguments.seeds.split(",")]
            found = Found(len(examples), len(seeds))
            for seed in seeds:
                for part in split_folds(examples, arguments.folds, seed):
                    rest = examples.subset(sorted(set(range(len(examples))) - set(part)))
                    of_fold(Fold(part, HeldOut(examples.subset(part), rest)), rest, seed, epochs, found)
            for row in rows_of(folder.name, found):
                print(row, flush=True)


def of_fold(fold: Fold, rest: Examples, seed: int, epochs: list[int], found: Found) -> None:
    start = tune(rest, seed=seed).head
    add(found, "tuned", "tuned", start, fold)
    for fusion in FUSIONS:
        options = TrainingOptions(fusion=fusion, seed=seed, epochs=epochs[-1])

        def told(epoch: Epoch, head: Head, fusion: str = fusion) -> bool:
            if epoch.number in epochs:
                add(found, f"head, {epoch.number} epochs", fusion, head, fold)
            return True

        train_head(rest, options, start=start, on_epoch=told)
        add(found, ALONE, fusion, fusion_alone(rest, options, start), fold)


def add(found: Found, learned: str, fusion: str, head: Head, fold: Fold) -> None:
    sums = found.sums.setdefault((learned, fusion), np.zeros(found.queries))
    sums[fold.part] += fold.held_out.answers(head).all
    if head.fusion_gate is not None:
        asked = fold.held_out.examples
        features = torch.as_tensor(asked.snapshot.query_features(asked.texts))
        found.factors[learned].append(head.fusion_gate(features).detach().numpy().ravel())


def fusion_alone(examples: Examples, options: TrainingOptions, start: Head) -> Head:
    """A head whose projections are the identity; the listwise objective, and decay of the gate."""
    examples = examples.weighed(start)
    head = new_head(examples.states.shape[1], options, start)
    corpus, keyword = corpus_embeddings(examples.snapshot), KeywordScores(examples)
    relevant, grades = padded(examples.relevant)
    target = torch.as_tensor(grades / grades.sum(1, keepdims=True))
    at, states = torch.as_tensor(np.maximum(relevant, 0)), torch.as_tensor(examples.states)
    _, fusion = head_groups(head, options)
    optimiser = torch.optim.Adam([fusion])
    generator = torch.Generator().manual_seed(options.seed)
    for _ in range(_STEPS):
        which = torch.randint(len(examples), (_BATCH,), generator=generator)
        loss = listwise_cross_entropy(
            head,
            states[which],
            keyword(which),
            corpus,
            at[which],
            target[which],
            features=keyword.features(which, head),
        )
        optimiser.zero_grad()
        (loss + options.decay * head.distance_from_identity()).backward()
        optimiser.step()
    return head.eval()


def rows_of(name: str, found: Found) -> list[str]:
    rows: list[str] = []
    tuned = found.sums["tuned", "tuned"].mean() / found.seeds
    for learned in dict.fromkeys(learned for learned, fusion in found.sums if fusion == "gate"):
        constant, gate = (found.sums[learned, fusion] / found.seeds for fusion in FUSIONS)
        gain = bootstrap_columns((gate - constant)[:, None])[0]
        low, high = np.percentile(np.concatenate(found.factors[learned]), [5, 95])
        rows.append(
            f"| {name} | {learned} | {tuned:.4f} | {constant.mean():.4f} | {gate.mean():.4f} | "
            f"{gain.mean:+.4f} ({gain.low:+.4f} to {gain.high:+.4f}) | {low:.2f} to {high:.2f} |"
        )
    return rows


if __name__ == "__main__":
    main()

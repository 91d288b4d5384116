"""What trainings on few judgements gain on other queries: the priors of the gate, and what it then lets live.

    python scripts/trials/priors.py draw DATA/scifact DATA/cranfield --home HOME --log priors.jsonl
    python scripts/trials/priors.py fit --log priors.jsonl

`draw` trains on drawn judged queries of each collection, which is indexed in HOME under the folder's name,
and ranks other judged queries of the same split by the live search, the tuned search, the memory and the
head. Test judgements have no part, but for a collection in folds, which has no other. Every draw is a line of
the log; an interrupted run goes on. With --shuffled the judgements are dealt anew among the drawn queries.

`fit` estimates mean and deviation of true changes, by kind of candidate and number of judged queries, with
the error of measurement taken off (method of moments: DerSimonian and Laird 1986), for each collection from
the others; and says what such priors would have put live, and what it gained.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsearch.threads import set_threads

set_threads()

from dataclasses import replace

import numpy as np

from dsearch.attention.retrieval.head import Head
from dsearch.cli.commands.evaluate import read_judgements
from dsearch.corpus import BeirFolder, Problems
from dsearch.engine import SearchEngine
from dsearch.jobs import BALANCED, MARGIN, RISKS
from dsearch.training import Examples, examples_from_judgements, finetune
from dsearch.training.gate.decision import Belief, Normal, noise_after, posterior
from dsearch.training.gate.gate import LOSS_BY_NOISE
from dsearch.training.gate.held_out import Answers, HeldOut
from dsearch.training.gate.noise import probability_of_noise
from dsearch.training.tune import DEFAULT, head_of

ASKED = 200  # other queries that are ranked
SMALLEST = 0.004  # deviation of true changes
MOST_EXPECTED = 0.02
CLEARLY = 0.01  # about the standard error of a paired change at 25 to 100 queries
NOTHING: dict[str, Any] = {"gained": {"all": {"ndcg": [0.0, 0.0, 0]}}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    draw = commands.add_parser("draw")
    draw.add_argument("folders", type=Path, nargs="+")
    draw.add_argument("--home", type=Path, required=True)
    draw.add_argument("--sizes", type=int, nargs="+", default=[25, 50, 100])
    draw.add_argument("--draws", type=int, default=20)
    draw.add_argument("--shuffled", action="store_true")
    fitting = commands.add_parser("fit")
    for command in (draw, fitting):
        command.add_argument("--log", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.command == "draw":
        drawn(arguments)
    else:
        fit(arguments)


def drawn(arguments: argparse.Namespace) -> None:
    lines = arguments.log.read_text().splitlines() if arguments.log.exists() else []
    done = {(of["collection"], of["size"], of["draw"], of["shuffled"]) for of in map(json.loads, lines)}
    with SearchEngine(arguments.home, readonly=True) as engine:
        pools = {folder.name: pool(engine, folder) for folder in arguments.folders}
        for number in range(arguments.draws):
            for size in arguments.sizes:
                for name, examples in pools.items():
                    key = (name, size, number, arguments.shuffled)
                    if key in done or len(examples) < size + 50:
                        continue
                    line = {
                        **dict(zip(("collection", "size", "draw", "shuffled"), key, strict=True)),
                        **trial(examples, size, number, shuffled=arguments.shuffled),
                    }
                    with arguments.log.open("a") as file:
                        file.write(json.dumps(line) + "\n")
                    print(key, round(line["seconds"], 1), flush=True)


def pool(engine: SearchEngine, folder: Path) -> Examples:
    split = "train" if (folder / "qrels/train.tsv").exists() else "test"
    judged = read_judgements(folder, split, None).qrels
    texts = {query.id: query.text for query in BeirFolder(folder).queries(Problems())}
    if len(judged) > 2000:
        some = np.random.default_rng(0).choice(sorted(judged), 2000, replace=False)
        judged = {query: judged[query] for query in some.tolist()}
    exclude = None
    if (folder / "source_docs.tsv").exists():
        rows = [line.split("\t") for line in (folder / "source_docs.tsv").read_text().splitlines()]
        exclude = {row[0]: [row[1]] for row in rows if row[0] in judged}
    return examples_from_judgements(engine.collection(folder.name), texts, judged, exclude)


def trial(examples: Examples, size: int, number: int, *, shuffled: bool) -> dict[str, Any]:
    """One training on `size` queries, and what it gains on others."""
    started = time.process_time()
    order = np.random.default_rng([number, size]).permutation(len(examples))
    training = examples.subset(np.sort(order[:size]).tolist())
    others = examples.subset(np.sort(order[size : size + ASKED]).tolist())
    start = head_of(DEFAULT, examples.states.shape[1])
    if shuffled:
        dealt = np.random.default_rng([number, 9]).permutation(size)
        training = replace(training, relevant=[training.relevant[at] for at in dealt])
    trained = finetune(training, start=start)
    asked = HeldOut(others, training)
    before = asked.answers(start)
    heads: dict[str, tuple[Head, dict[str, Any]]] = {"head": (trained.head, trained.record["gate"])}
    if (tuned := trained.tuned) is not None:
        kind = "tuned" if tuned.head.memory is None else "memory"
        heads[kind] = tuned.head, tuned.record["gate"]
    return {
        "noise": probability_of_noise(training, start),
        "before": means(before),
        "candidates": {
            kind: {"held_out": gate["slices"], "gained": gains(before, asked.answers(head))}
            for kind, (head, gate) in heads.items()
        },
        "live": trained.goes_live,
        "seconds": time.process_time() - started,
    }


def means(answers: Answers) -> list[float]:
    return [float(of.mean()) for of in (answers.all, answers.evidence)]


def gains(before: Answers, after: Answers) -> dict[str, dict[str, list[float]]]:
    """Mean and standard error of the changes of both measures, over all and over unseen documents."""
    unseen = ~np.isnan(before.unseen)
    changes = {
        "all": (after.all - before.all, after.evidence - before.evidence),
        "unseen": (
            (after.unseen - before.unseen)[unseen],
            (after.unseen_evidence - before.unseen_evidence)[unseen],
        ),
    }
    return {
        name: {
            measure: [float(of.mean()), float(of.std(ddof=1) / math.sqrt(len(of))), len(of)]
            for measure, of in zip(("ndcg", "precision"), pair, strict=True)
            if len(of) > 1
        }
        for name, pair in changes.items()
    }


def fitted_priors(lines: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Normal]]:
    """Mean and deviation of the true change of average precision, by kind and number of judged queries."""
    priors: dict[tuple[str, int], dict[str, Normal]] = {}
    for kind, size in sorted({(kind, line["size"]) for line in lines for kind in line["candidates"]}):
        some = [
            line["candidates"][kind]["gained"]
            for line in lines
            if line["size"] == size and kind in line["candidates"]
        ]
        priors[kind, size] = {
            name: random_effects([of[name]["precision"] for of in some if "precision" in of.get(name, {})])
            for name in ("all", "unseen")
        }
    return priors


def random_effects(measured: list[list[float]]) -> Normal:
    """Mean and deviation of true effects, by effects that were measured with these standard errors."""
    means, errors = (np.array([of[at] for of in measured]) for at in (0, 1))
    if len(means) < 2:
        return Normal(0.0, SMALLEST)
    variance = float(means.var(ddof=1) - (errors**2).mean())
    return Normal(float(means.mean()), max(SMALLEST, math.sqrt(max(0.0, variance))))


def goes_live(
    line: dict[str, Any], priors: dict[tuple[str, int], dict[str, Normal]]
) -> tuple[str | None, float]:
    """The candidate that these priors would let answer, and its gain in nDCG@10 on other queries."""
    passed: list[str] = []
    for kind, candidate in line["candidates"].items():
        prior = priors.get((kind, line["size"]))
        if prior is None:
            continue
        belief = Belief(clipped(prior["all"]), clipped(prior["unseen"]), line["noise"])
        whole = candidate["held_out"][0]
        mean, deviation, queries = whole["evidence"]["mean"], whole["deviation"], whole["queries"]
        noise = noise_after(belief.whole, belief.noise, mean, deviation, queries)
        gain = posterior(mean, deviation, queries, belief.whole)
        harms = [noise + (1 - noise) * gain.below(-MARGIN)]
        for part in candidate["held_out"][1:]:
            if part["harm"] is not None and part["evidence"] is not None:
                change = posterior(part["evidence"]["mean"], part["deviation"], part["queries"], belief.part)
                harms.append(noise + (1 - noise) * change.below(-MARGIN))
        expected = (1 - noise) * gain.mean - noise * LOSS_BY_NOISE
        if mean > 0 and expected > 0 and max(harms) <= RISKS[BALANCED].harm:
            passed.append(kind)
    best = chosen(line, passed)
    return best, 0.0 if best is None else line["candidates"][best]["gained"]["all"]["ndcg"][0]


def chosen(line: dict[str, Any], passed: Sequence[str]) -> str | None:
    """The head, unless another candidate is better by `CLEARLY`: the log has no paired standard errors."""
    means = {kind: line["candidates"][kind]["held_out"][0]["evidence"]["mean"] for kind in passed}
    return max(means, key=lambda kind: means[kind] + CLEARLY * (kind == "head"), default=None)


def clipped(prior: Normal) -> Normal:
    """A prior no rosier than what is known of other collections."""
    return Normal(min(prior.mean, MOST_EXPECTED), min(max(prior.deviation, 0.01), 0.04))


def fit(arguments: argparse.Namespace) -> None:
    lines = [json.loads(line) for line in arguments.log.read_text().splitlines()]
    honest = [line for line in lines if not line["shuffled"]]
    names = sorted({line["collection"] for line in honest})
    print("true changes of average precision, all queries / unseen documents")
    for key, prior in fitted_priors(honest).items():
        print(
            f"  {key[0]:<7}{key[1]:>4}",
            *(f"{name} {of.mean:+.4f} τ {of.deviation:.4f}" for name, of in prior.items()),
        )
    cells: list[tuple[float, float]] = []
    for name in names:
        others = fitted_priors([line for line in honest if line["collection"] != name])
        for size in sorted({line["size"] for line in honest}):
            mine = [line for line in honest if line["collection"] == name and line["size"] == size]
            if not mine:
                continue
            live = [goes_live(line, others) for line in mine]
            fixed = {
                kind: np.mean(
                    [line["candidates"].get(kind, NOTHING)["gained"]["all"]["ndcg"][0] for line in mine]
                )
                for kind in ("tuned", "memory", "head")
            }
            fixed["nothing"] = 0.0
            counts = Counter(kind for kind, _ in live)
            gained = [gain for _, gain in live]
            best = max(fixed, key=fixed.__getitem__)
            cells.append((float(np.mean(gained)), float(fixed[best])))
            print(
                f"{name:<16}{size:>4}, {len(mine)} draws: live {np.mean(gained):+.4f}, lowest "
                f"{min(gained):+.4f}; best fixed choice {best} {fixed[best]:+.4f}; live: {dict(counts)}"
            )
    live_gain, best_gain = (np.mean([cell[at] for cell in cells]) for at in (0, 1))
    print(f"mean over {len(cells)} cells: live {live_gain:+.4f}, best fixed choice {best_gain:+.4f}")
    noise = [line for line in lines if line["shuffled"]]
    if noise:
        priors = fitted_priors(honest)
        live = [goes_live(line, priors)[0] for line in noise]
        passed = sum(of is not None for of in live)
        print(f"judgements dealt anew: {passed} of {len(noise)} put something live")


if __name__ == "__main__":
    main()

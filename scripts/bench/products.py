"""Matrix products with many keys: torch's own and `dsearch.products.product`, by turns.

    python scripts/bench/products.py
    python scripts/bench/products.py --keys 100000 --threads 2
    python scripts/bench/products.py --encoder     # the default encoder with either, over README's paragraphs

One row for each batch: scores (queries by keys) and sums (weights by values), GFLOP/s of each way, and the
median ratio of their times in the same round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from dsearch.products import product
from dsearch.threads import set_threads


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=5183)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64, 128])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--encoder", action="store_true", help="time the default encoder instead")
    chosen = parser.parse_args()
    set_threads(chosen.threads)
    if chosen.encoder:
        time_encoder(chosen.rounds)
        return
    keys = torch.randn(chosen.keys, chosen.dimension)
    print("| batch | scores: torch | product | times | sums: torch | product | times |")
    print("|---|---|---|---|---|---|---|")
    for batch in chosen.batches:
        queries, weights = torch.randn(batch, chosen.dimension), torch.rand(batch, chosen.keys)
        flop = 2e-9 * batch * chosen.keys * chosen.dimension
        ways: list[tuple[Callable[[], object], Callable[[], object]]] = [
            (lambda q=queries: q @ keys.T, lambda q=queries: product(q, keys)),
            (lambda w=weights: w @ keys, lambda w=weights: product(w, keys.T)),
        ]
        cells: list[str] = []
        for pair in ways:
            rounds = [[seconds(way) for way in pair] for _ in range(chosen.rounds + 2)][2:]
            rates = [flop / statistics.median(of) for of in zip(*rounds, strict=True)]
            ratio = statistics.median(of_torch / ours for of_torch, ours in rounds)
            cells += [*(f"{rate:.0f}" for rate in rates), f"{ratio:.1f}"]
        print(f"| {batch} | " + " | ".join(cells) + " |")


def time_encoder(rounds: int) -> None:
    """Print how long the default encoder takes in float32, with torch's products and with ours."""
    from dsearch.encoder import Encoder

    encoder = Encoder.load()
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    texts = [text for text in readme.split("\n\n") if len(text) > 300][:32]
    jobs: dict[str, Callable[[], object]] = {
        f"{len(texts)} documents": lambda: encoder.encode_documents(texts),
        "a query": lambda: encoder.encode_queries([texts[0][:60]]),
    }

    def of_torch(compute: Callable[[], object]) -> float:
        with torch.backends.mkldnn.flags(enabled=False):
            return seconds(compute)

    for name, compute in jobs.items():
        turns = [(of_torch(compute), seconds(compute)) for _ in range(rounds + 2)][2:]
        torch_s, ours_s = (statistics.median(of) for of in zip(*turns, strict=True))
        ratio = statistics.median(theirs / ours for theirs, ours in turns)
        print(f"{name}: torch {torch_s * 1e3:.1f} ms, with product {ours_s * 1e3:.1f} ms: {ratio:.2f} times")


def seconds(compute: Callable[[], object]) -> float:
    """How long it takes once."""
    started = time.perf_counter()
    compute()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()

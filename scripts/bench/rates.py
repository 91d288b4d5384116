#!/usr/bin/env python3
"""Training pairs a CPU second: the whole encoder by sentence-transformers, heads by dsearch.

    python scripts/bench/rates.py

Pairs are sentences of Python's documentation and the entries that they were taken from; one thread. The
encoder's rate is that of whole steps (MultipleNegativesRankingLoss, batches of 16, AdamW), a head's that of
whole runs with their retention term, encoding not counted: embeddings are stored once. "attention" learns
through `SearchLayer`: search, softmax over the best 64, and gradient back.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dsearch.threads import set_threads

OBJECTIVES = ("listwise", "judged")
CANDIDATES, BATCH = 64, 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=2_000)
    parser.add_argument("--pairs", type=int, default=96, help="for the encoder (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    set_threads(1)
    import numpy as np

    from dsearch.corpus import python_documents
    from dsearch.encoder import DEFAULT_ENCODER, load_encoder
    from dsearch.engine import PassageOptions, SearchEngine
    from dsearch.training import examples_from_corpus

    encoder = load_encoder(DEFAULT_ENCODER)
    with tempfile.TemporaryDirectory() as folder, SearchEngine(folder, encoder=lambda: encoder) as engine:
        collection = engine.create("python", passages=PassageOptions(none=True))
        collection.ingest(python_documents()[: options.documents])
        examples = examples_from_corpus(collection, limit=options.documents)
        texts = collection.store.contents(
            collection.snapshot.rows(np.array([at[0] for at, _ in examples.relevant[: options.pairs]]))
        )
        ways = {"encoder": of_encoder(encoder, examples.texts[: options.pairs], texts)}
        ways |= {f"head, {name}": of_head(examples, name) for name in OBJECTIVES}
        ways["attention over 64"] = of_attention(collection, examples)
        rates = {name: [way() for _ in range(options.rounds)] for name, way in ways.items()}
    middle = {name: statistics.median(each) for name, each in rates.items()}
    print(f"{options.documents} documents, {len(examples)} pairs\n")
    print("| learns | pairs / CPU s | times the encoder's |\n|---|---|---|")
    for name, rate in middle.items():
        print(f"| {name} | {rate:,.1f} | {rate / middle['encoder']:,.0f} |")
    if options.json:
        options.json.write_text(json.dumps(middle, indent=1))


def of_encoder(encoder: object, queries: list[str], texts: list[str]) -> Callable[[], float]:
    import torch
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = encoder.model  # type: ignore[attr-defined]
    loss = MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)  # the next rounds find what this one found

    def rate() -> float:
        started = time.process_time()
        for at in range(0, len(queries), 16):
            sides = [model.preprocess(side[at : at + 16]) for side in (queries, texts)]
            optimizer.zero_grad()
            loss(sides, None).backward()
            optimizer.step()
        return len(queries) / (time.process_time() - started)

    return rate


def of_head(examples, objective: str, epochs: int = 3) -> Callable[[], float]:
    from dsearch.training import TrainingOptions, train_head

    def rate() -> float:
        started = time.process_time()
        train_head(examples, TrainingOptions(objective=objective, epochs=epochs, tune=False))
        return epochs * len(examples) / (time.process_time() - started)

    return rate


def of_attention(collection, examples) -> Callable[[], float]:
    import numpy as np
    import torch

    from dsearch.engine import SearchLayer

    layer = SearchLayer(collection.snapshot, collection.head("v0"), mode="dense", candidates=CANDIDATES)
    states = torch.as_tensor(examples.states)
    relevant = np.array([int(at[0]) for at, _ in examples.relevant])
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-4)

    def rate() -> float:
        started = time.process_time()
        for at in range(0, len(states), BATCH):
            found = layer(states[at : at + BATCH])
            right = torch.as_tensor(found.positions == relevant[at : at + BATCH, None])
            likelihood = torch.where(right, found.weights, 0.0).sum(-1)
            optimizer.zero_grad()
            (-likelihood.clamp_min(1e-9).log().mean()).backward()
            optimizer.step()
        return len(states) / (time.process_time() - started)

    return rate


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Any loss trains retrieval: a plain loop, then the gate decides whether the layer becomes the live version.

    python scripts/examples/own_loss.py [--bf16] [--compile]

The loss is dsearch's business as little as a customer's: here the margin by which a question's document is
ahead of the others. Documents are added between the steps, as in a running service.
"""

from __future__ import annotations

import sys
import tempfile

import torch
from facts import Question, facts
from torch.nn.functional import softplus

import dsearch


class Rephrase(torch.nn.Module):
    """A network of one's own before the layer: it may turn the query."""

    def __init__(self, dimension: int):
        super().__init__()
        self.turn = torch.nn.Linear(dimension, dimension)
        torch.nn.init.zeros_(self.turn.weight)
        torch.nn.init.zeros_(self.turn.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(states + 0.1 * torch.tanh(self.turn(states)), dim=-1)


def margins(layer, network, questions: list[Question], states: dict[str, torch.Tensor]) -> torch.Tensor:
    """Score of each question's document less that of the best other one."""
    texts = [one.text for one in questions]
    out = layer(network(torch.stack([states[text] for text in texts])), texts)
    ids = layer.ids(out.positions)
    right = torch.tensor([[id == q.document for id in line] for q, line in zip(questions, ids, strict=True)])
    best = out.scores.masked_fill(~right, -1e4).amax(1)
    return best.clamp_min(-1.0) - out.scores.masked_fill(right, -1e4).amax(1)


def main() -> None:
    documents, training, held_out = facts(14, 10)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as home, dsearch.SearchEngine(home) as engine:
        collection = engine.create("facts")
        collection.ingest(documents[:-20])
        layer = dsearch.open_layer(engine, "facts")
        asked = [one.text for one in (*training, *held_out)]
        states = dict(zip(asked, layer.query_states(asked), strict=True))  # the encoder stays: encoded once
        same, network = torch.nn.Identity(), Rephrase(384)
        run = torch.compile(network, backend="aot_eager") if "--compile" in sys.argv else network
        optimizer = torch.optim.AdamW([*layer.parameters(), *network.parameters()], lr=2e-3)
        for step in range(60):
            if step < 20:
                collection.upsert([documents[step - 20]])  # a live collection grows meanwhile
                layer.refresh()
            batch = [training[i] for i in torch.randperm(len(training))[:24].tolist()]
            with torch.autocast("cpu", torch.bfloat16, enabled="--bf16" in sys.argv):
                loss = softplus((0.1 - margins(layer, run, batch, states)) * 10).mean()
                loss = loss + softplus((0.1 - margins(layer, same, batch, states)) * 10).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        saved = dsearch.save_model(
            collection,
            layer,
            evidence=lambda layer: margins(layer, same, held_out, states),
            measure="margin",
        )
        print(saved.reason)
        print(f"{collection.live_model} answers: {collection.search(held_out[0].text, limit=1).hits[0].text}")


if __name__ == "__main__":
    main()

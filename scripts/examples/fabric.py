#!/usr/bin/env python3
"""Lightning Fabric trains a collection's head by one's own loss; interrupted, it resumes from its checkpoint.

    pip install lightning-fabric
    python scripts/examples/fabric.py [--bf16]

Fabric places modules on devices and wraps the backward; the layer is one of them. A run is stopped after 10
of 20 steps here, and goes on in a new layer: that layer's state, and the optimizer's, are in the checkpoint.
"""

from __future__ import annotations

import sys
import tempfile

import torch
from facts import Question, facts
from lightning_fabric import Fabric

import dsearch


class Answering(torch.nn.Module):
    """log weight of the document that answers."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, questions: list[Question]) -> torch.Tensor:
        texts = [one.text for one in questions]
        out = self.layer(self.layer.query_states(texts), texts)
        ids = self.layer.ids(out.positions)
        right = [[id == one.document for id in line] for one, line in zip(questions, ids, strict=True)]
        return (out.weights * torch.tensor(right, device=out.weights.device)).sum(1).clamp_min(1e-6).log()


def train(fabric: Fabric, engine, checkpoint: str, questions: list[Question], steps: int):
    """Take steps up to `steps` in all, from the checkpoint where there is one; the trained model."""
    layer = dsearch.open_layer(engine, "facts")
    optimizer = torch.optim.AdamW(layer.parameters(), lr=2e-3)
    model, optimizer = fabric.setup(Answering(layer), optimizer)
    state = {"model": model, "optimizer": optimizer, "step": 0}
    try:
        fabric.load(checkpoint, state)
        fabric.print(f"resumed after step {state['step']}")
    except FileNotFoundError:
        pass
    for step in range(state["step"], steps):
        draw = torch.Generator().manual_seed(step)  # the batch depends on the step alone: nothing to restore
        batch = [questions[i] for i in torch.randperm(len(questions), generator=draw)[:24].tolist()]
        optimizer.zero_grad()
        loss = -model(batch).mean()
        fabric.backward(loss)
        optimizer.step()
        fabric.print(f"step {step + 1} of {steps}: loss {loss.item():.3f}")
    fabric.save(checkpoint, {**state, "step": steps})
    return layer


def main() -> None:
    documents, training, held_out = facts(14, 10)
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed" if "--bf16" in sys.argv else None)
    with tempfile.TemporaryDirectory() as home, dsearch.SearchEngine(home) as engine:
        collection = engine.create("facts")
        collection.ingest(documents)
        train(fabric, engine, f"{home}/fabric.ckpt", training, 10)
        layer = train(fabric, engine, f"{home}/fabric.ckpt", training, 20)
        saved = dsearch.save_model(
            collection, layer, evidence=lambda layer: Answering(layer)(held_out), measure="log weight"
        )
        print(saved.reason)
        print(f"{collection.live_model} answers: {collection.search(held_out[0].text, limit=1).hits[0].text}")


if __name__ == "__main__":
    main()

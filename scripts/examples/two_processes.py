#!/usr/bin/env python3
"""Two processes train one head: each searches for half of a batch, and torch averages their gradients.

    python scripts/examples/two_processes.py

Each opens the folder of the collection without its lock, beside the process that writes; the queries are
encoded once, before. With GPUs it is the same by the back end "nccl" and a device for each process.
"""

from __future__ import annotations

import tempfile

import torch
from facts import Question, facts
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import dsearch

PROCESSES, STEPS, BATCH = 2, 20, 24


class Answering(torch.nn.Module):
    """log weight of the document that answers."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, states: torch.Tensor, questions: list[Question]) -> torch.Tensor:
        out = self.layer(states, [one.text for one in questions])
        ids = self.layer.ids(out.positions)
        right = [[id == one.document for id in line] for one, line in zip(questions, ids, strict=True)]
        return (out.weights * torch.tensor(right)).sum(1).clamp_min(1e-6).log()


def train(rank: int, home: str, states: torch.Tensor, questions: list[Question]) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{home}/meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=PROCESSES)
    layer = dsearch.open_layer(home, "facts")
    # Values, for one, have no part in this loss.
    model = DistributedDataParallel(Answering(layer), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(step)  # one draw for all, of which each has its share
        share = torch.randperm(len(questions), generator=draw)[:BATCH][rank::PROCESSES]
        optimizer.zero_grad()
        loss = -model(states[share], [questions[i] for i in share.tolist()]).mean()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 4:
            print(f"step {step + 1} of {STEPS}: loss {loss.item():.3f}", flush=True)
    if rank == 0:  # all have the same head
        torch.save(layer.state_dict(), f"{home}/head.pt")
    distributed.destroy_process_group()


def main() -> None:
    documents, training, held_out = facts(14, 10)
    with tempfile.TemporaryDirectory() as home, dsearch.SearchEngine(home) as engine:
        collection = engine.create("facts")
        collection.ingest(documents)
        layer = dsearch.open_layer(engine, "facts")
        states = layer.query_states([one.text for one in training])
        torch.multiprocessing.spawn(train, (home, states, training), nprocs=PROCESSES)
        layer.load_state_dict(torch.load(f"{home}/head.pt", weights_only=True))

        def score(layer) -> torch.Tensor:
            return Answering(layer)(layer.query_states([one.text for one in held_out]), held_out)

        print(dsearch.save_model(collection, layer, evidence=score, measure="log weight").reason)
        print(f"{collection.live_model} answers: {collection.search(held_out[0].text, limit=1).hits[0].text}")


if __name__ == "__main__":
    main()

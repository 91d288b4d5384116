"""One of several processes that train together: `process_gradients.py ENCODER HOME RANK COUNT PORT OUT`.

Writes the gradients of one step of scope full on every fourth document, or so that the last share is short.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dsearch.threads import set_threads

set_threads(1)

import torch
from safetensors.torch import save_file
from support.training.numbers import number_examples

from dsearch.attention.retrieval.head import Head
from dsearch.encoder import Encoder, EncoderTraining, LearningEncoder
from dsearch.engine import SearchEngine
from dsearch.training import Student
from dsearch.training.full_task import FullOptions, FullTask
from dsearch.training.loop.distributed import joined


def main(folder: str, home: str, rank: str, count: str, port: str, out: str) -> None:
    os.environ.update(RANK=rank, WORLD_SIZE=count, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    encoder = Encoder.load(folder)
    with SearchEngine(home, readonly=True, encoder=lambda: encoder) as engine, joined() as processes:
        collection = engine.collection("numbers")
        examples = number_examples(collection)
        student = Student(Head(16), LearningEncoder(encoder, EncoderTraining("all")))
        task = FullTask(
            examples,
            lambda at: collection.store.contents(examples.snapshot.rows(at)),
            FullOptions(chunk=4, negatives=2, depth=10, margin=2.0, steps_a_round=3),
            student,
            processes,
        )
        task.parameter_groups()
        generator = torch.Generator().manual_seed(0)
        task.step(torch.arange(7), generator)
        student.zero_grad()
        losses = task.step(torch.arange(5, 18), generator)
        gradients = {
            name: parameter.grad.clone()
            for name, parameter in student.named_parameters()
            if parameter.grad is not None
        }
        assert processes.agree(processes.rank == int(count) - 1)
        assert not processes.agree(False)
    save_file({**gradients, "losses": losses, "index": task.index.embeddings}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])

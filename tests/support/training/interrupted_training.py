"""A training run in a process of its own, to be killed: `interrupted_training.py HOME RUN OUT SCOPE RESUME`.

Started with RUN "-" it trains without a run folder. The head, and the encoder in scope query, are written to
OUT at the end.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dsearch.threads import set_threads

set_threads(1)

from safetensors.torch import save_file
from support.fakes import HashingEncoder

from dsearch.engine import SearchEngine
from dsearch.training import Observer, RunFolder, TrainingOptions, examples_from_judgements, finetune
from dsearch.training.loop import loop
from dsearch.types import Progress

QUERIES = 60


class Slow(Observer):
    """Leaves time between steps for a kill."""

    def progress(self, progress: Progress) -> None:
        time.sleep(0.01)


def main(home: str, run: str, out: str, scope: str, resume: str) -> None:
    loop.CHECKPOINT_S = 0.02  # many within an epoch
    encoder = HashingEncoder()
    with SearchEngine(home, readonly=True, encoder=lambda: encoder) as engine:
        collection = engine.collection("synonyms")
        queries = {f"q{i}": f"question{i % 20} colour{i % 3} asked{i}" for i in range(QUERIES)}
        examples = examples_from_judgements(
            collection, queries, {f"q{i}": {f"d{i}": 1.0} for i in range(QUERIES)}
        )
        options = TrainingOptions(
            scope=scope,
            encoder_method="all",
            epochs=4,
            batch_size=4,
            folds=2,
            learning_rate=1e-2,
            memory=False,  # a cancelled run that goes on has both
            tune=False,
        )
        folder = None
        if run != "-":
            folder = RunFolder(Path(run), {"scope": scope}, resume=resume == "resume")
        observer = Slow() if run != "-" else None
        trained = finetune(examples, options, encoder=encoder, observer=observer, run=folder)
    tensors = {f"head.{name}": tensor for name, tensor in trained.head.state_dict().items()}
    if trained.encoder is not None:
        tensors |= {f"encoder.{name}": tensor for name, tensor in trained.encoder.tensors.items()}
    save_file(tensors, out)


if __name__ == "__main__":
    main(*sys.argv[1:])

#!/usr/bin/env python3
"""The Trainer of Hugging Face trains a collection's head and query encoder; the gate decides.

    python scripts/examples/trainer.py          (needs the extra lora, which brings accelerate)

The model's `forward` gives a loss, as the Trainer wants it: the layer is one module among others.
"""

from __future__ import annotations

import tempfile

import torch
from facts import Question, facts
from transformers import Trainer, TrainingArguments

import dsearch


class Answering(torch.nn.Module):
    """−log weight of the document that answers."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, texts: list[str], documents: list[str], **_) -> dict[str, torch.Tensor]:
        out = self.layer(self.layer.query_states(texts), texts)
        ids = self.layer.ids(out.positions)
        right = [[id == wanted for id in line] for wanted, line in zip(documents, ids, strict=True)]
        nll = -(out.weights * torch.tensor(right)).sum(1).clamp_min(1e-6).log()
        return {"loss": nll.mean(), "nll": nll}


def batch_of(questions: list[Question]) -> dict[str, list[str]]:
    return {"texts": [one.text for one in questions], "documents": [one.document for one in questions]}


def main() -> None:
    documents, training, held_out = facts(10, 8)
    with tempfile.TemporaryDirectory() as home, dsearch.SearchEngine(home) as engine:
        collection = engine.create("facts")
        collection.ingest(documents)
        layer = dsearch.open_layer(engine, "facts", encoder_training="lora")
        arguments = TrainingArguments(
            output_dir=f"{home}/trainer",
            per_device_train_batch_size=20,
            num_train_epochs=3,
            learning_rate=1e-3,
            remove_unused_columns=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        Trainer(Answering(layer), arguments, train_dataset=training, data_collator=batch_of).train()

        def score(layer) -> torch.Tensor:
            return -Answering(layer)(**batch_of(held_out))["nll"]

        saved = dsearch.save_model(collection, layer, evidence=score, measure="log-likelihood")
        print(saved.reason)
        print(f"{collection.live_model} answers: {collection.search(held_out[0].text, limit=1).hits[0].text}")


if __name__ == "__main__":
    main()

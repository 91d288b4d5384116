"""Fine-tuning: judgements or the corpus itself → a head that is live at once."""

from __future__ import annotations

from dsearch.training.examples import Examples, examples_from_judgements
from dsearch.training.finetune import Trained, finetune
from dsearch.training.options import TrainingOptions, self_supervised_options
from dsearch.training.self_supervision import examples_from_corpus
from dsearch.training.trainer import Epoch, train_head

__all__ = [
    "Epoch",
    "Examples",
    "Trained",
    "TrainingOptions",
    "examples_from_corpus",
    "examples_from_judgements",
    "finetune",
    "self_supervised_options",
    "train_head",
]

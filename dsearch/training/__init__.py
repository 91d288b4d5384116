"""Fine-tuning: judgements or the corpus itself → a head that is live at once, if the gate lets it."""

from __future__ import annotations

from dsearch.training.comparison import Comparison, compare_values
from dsearch.training.examples import Examples, examples_from_judgements
from dsearch.training.finetune import Trained, finetune
from dsearch.training.gate import Gate, GateReport, judge
from dsearch.training.headroom import Headroom, headroom
from dsearch.training.options import TrainingOptions, self_supervised_options
from dsearch.training.self_supervision import examples_from_corpus
from dsearch.training.trainer import Epoch, train_head
from dsearch.training.tune import Tuned, tune

__all__ = [
    "Comparison",
    "Epoch",
    "Examples",
    "Gate",
    "GateReport",
    "Headroom",
    "Trained",
    "TrainingOptions",
    "Tuned",
    "compare_values",
    "examples_from_corpus",
    "examples_from_judgements",
    "finetune",
    "headroom",
    "judge",
    "self_supervised_options",
    "train_head",
    "tune",
]

"""Fine-tuning: judgements or the corpus itself → a head that is live at once, if the gate lets it."""

from __future__ import annotations

from dsearch.training.actions import ACTIONS, Action
from dsearch.training.checks import CheckedData, DataReport, checked_judgements
from dsearch.training.clicks import ClickOptions, Graded, graded_pages
from dsearch.training.comparison import Comparison, compare_values
from dsearch.training.examples import Examples, examples_from_judgements
from dsearch.training.finetune import Trained, finetune
from dsearch.training.finetune_full import finetune_full
from dsearch.training.finetune_values import TrainedValues, finetune_values
from dsearch.training.from_feedback import FromFeedback, examples_from_feedback, finetune_from_feedback
from dsearch.training.full import FullOptions
from dsearch.training.gate import Gate, GateReport, judge
from dsearch.training.headroom import Headroom, headroom
from dsearch.training.loop import Epoch, TrainingDiverged, Watch
from dsearch.training.null_slot import NullSlot, learn_null_slot, unanswerable_queries, with_null_slot
from dsearch.training.options import (
    TrainingOptions,
    ValueOptions,
    feedback_options,
    query_options,
    self_supervised_options,
)
from dsearch.training.overlay import OverlayOptions, learn_overlay, with_overlay
from dsearch.training.propensity import Propensities, propensities_from_pages
from dsearch.training.registering import (
    TOLD_OF_TRAINING,
    TOLD_OF_TUNING,
    Registered,
    register,
    register_trained,
    starting_version,
)
from dsearch.training.runfolder import RunFolder
from dsearch.training.self_supervision import examples_from_corpus
from dsearch.training.student import Student
from dsearch.training.trainer import train_head, train_student
from dsearch.training.tune import Tuned, tune
from dsearch.training.value_examples import ValueExamples, value_examples

__all__ = [
    "ACTIONS",
    "TOLD_OF_TRAINING",
    "TOLD_OF_TUNING",
    "Action",
    "CheckedData",
    "ClickOptions",
    "Comparison",
    "DataReport",
    "Epoch",
    "Examples",
    "FromFeedback",
    "FullOptions",
    "Gate",
    "GateReport",
    "Graded",
    "Headroom",
    "NullSlot",
    "OverlayOptions",
    "Propensities",
    "Registered",
    "RunFolder",
    "Student",
    "Trained",
    "TrainedValues",
    "TrainingDiverged",
    "TrainingOptions",
    "Tuned",
    "ValueExamples",
    "ValueOptions",
    "Watch",
    "checked_judgements",
    "compare_values",
    "examples_from_corpus",
    "examples_from_feedback",
    "examples_from_judgements",
    "feedback_options",
    "finetune",
    "finetune_from_feedback",
    "finetune_full",
    "finetune_values",
    "graded_pages",
    "headroom",
    "judge",
    "learn_null_slot",
    "learn_overlay",
    "propensities_from_pages",
    "query_options",
    "register",
    "register_trained",
    "self_supervised_options",
    "starting_version",
    "train_head",
    "train_student",
    "tune",
    "unanswerable_queries",
    "value_examples",
    "with_null_slot",
    "with_overlay",
]

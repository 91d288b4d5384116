"""Fine-tuning: train a head on judgements or on the corpus itself, and promote it if it passes the gate."""

from __future__ import annotations

from dsearch.training.candidate import Candidate, JudgedCandidate
from dsearch.training.data.clicks import (
    ACTIONS,
    Action,
    ClickGrades,
    ClickOptions,
    Propensities,
    graded_pages,
    propensities_from_pages,
)
from dsearch.training.data.examples import (
    Examples,
    examples_from_corpus,
    examples_from_judgements,
    sentences_of_corpus,
)
from dsearch.training.data.validation import CheckedData, DataReport, checked_judgements
from dsearch.training.evaluation import (
    Baseline,
    Comparison,
    Regression,
    compare_values,
    judge_regression,
    run_evaluation,
)
from dsearch.training.finetune.feedback import FromFeedback, examples_from_feedback, finetune_from_feedback
from dsearch.training.finetune.full import finetune_full
from dsearch.training.finetune.head import TrainingResult, finetune
from dsearch.training.finetune.values import TrainedValues, finetune_values
from dsearch.training.full_task import FullOptions
from dsearch.training.gate.gate import Gate, GateReport, judge, judge_scores, verdict_of
from dsearch.training.gate.held_out import Headroom, headroom
from dsearch.training.head_task import train_head, train_student
from dsearch.training.loop.loop import Epoch, Observer, Student, TrainingDiverged, Watch
from dsearch.training.loop.run_folder import RunFolder
from dsearch.training.memory import remember
from dsearch.training.options import (
    TrainingOptions,
    ValueOptions,
    feedback_options,
    query_options,
    self_supervised_options,
)
from dsearch.training.registry import (
    JobResult,
    Registration,
    register,
    register_outcomes,
    register_verdict,
    starting_version,
    summary,
)
from dsearch.training.run import run_training, run_tuning
from dsearch.training.saving import (
    Evidence,
    evidence_fields,
    judge_layer,
    judge_version,
    judged_scores,
    save_model,
    scores_by,
)
from dsearch.training.tune import TunedSearch, tune
from dsearch.training.values import ValueExamples, value_examples

__all__ = [
    "ACTIONS",
    "Action",
    "Baseline",
    "Candidate",
    "CheckedData",
    "ClickGrades",
    "ClickOptions",
    "Comparison",
    "DataReport",
    "Epoch",
    "Evidence",
    "Examples",
    "FromFeedback",
    "FullOptions",
    "Gate",
    "GateReport",
    "Headroom",
    "JobResult",
    "JudgedCandidate",
    "Observer",
    "Propensities",
    "Registration",
    "Regression",
    "RunFolder",
    "Student",
    "TrainedValues",
    "TrainingDiverged",
    "TrainingOptions",
    "TrainingResult",
    "TunedSearch",
    "ValueExamples",
    "ValueOptions",
    "Watch",
    "checked_judgements",
    "compare_values",
    "evidence_fields",
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
    "judge_layer",
    "judge_regression",
    "judge_scores",
    "judge_version",
    "judged_scores",
    "propensities_from_pages",
    "query_options",
    "register",
    "register_outcomes",
    "register_verdict",
    "remember",
    "run_evaluation",
    "run_training",
    "run_tuning",
    "save_model",
    "scores_by",
    "self_supervised_options",
    "sentences_of_corpus",
    "starting_version",
    "summary",
    "train_head",
    "train_student",
    "tune",
    "value_examples",
    "verdict_of",
]

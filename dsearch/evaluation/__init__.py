"""Judgements, runs, measures and their confidence intervals; depends on numpy alone."""

from __future__ import annotations

from dsearch.evaluation.calibration import (
    Answerability,
    answerability,
    auroc,
    brier_score,
    debiased_calibration_error,
)
from dsearch.evaluation.folds import Fold, cross_validation, read_folds
from dsearch.evaluation.metrics import DEFAULT_MEASURES, Values, evaluate, mean_values
from dsearch.evaluation.qrels import (
    JudgedPair,
    Pairs,
    Qrels,
    merged_pairs,
    read_judged_pairs,
    read_pairs,
    read_qrels,
    seen_documents,
    split_seen,
    without_pairs,
    without_positives,
)
from dsearch.evaluation.report import BetterLeg, EvaluationReport, ReportCell, ReportLine, build_report
from dsearch.evaluation.run import Run, read_trec, write_trec
from dsearch.evaluation.significance import Interval, bootstrap_columns, bootstrap_mean, paired_bootstrap

__all__ = [
    "DEFAULT_MEASURES",
    "Answerability",
    "BetterLeg",
    "EvaluationReport",
    "Fold",
    "Interval",
    "JudgedPair",
    "Pairs",
    "Qrels",
    "ReportCell",
    "ReportLine",
    "Run",
    "Values",
    "answerability",
    "auroc",
    "bootstrap_columns",
    "bootstrap_mean",
    "brier_score",
    "build_report",
    "cross_validation",
    "debiased_calibration_error",
    "evaluate",
    "mean_values",
    "merged_pairs",
    "paired_bootstrap",
    "read_folds",
    "read_judged_pairs",
    "read_pairs",
    "read_qrels",
    "read_trec",
    "seen_documents",
    "split_seen",
    "without_pairs",
    "without_positives",
    "write_trec",
]

"""Records that stand beside the packages are frozen and have slots, but for those named here."""

from __future__ import annotations

from support.record_classes import unlike_the_others


def test_records_are_declared_alike() -> None:
    assert unlike_the_others("") == {
        "AttentionOptions": "+kw_only",
        "LearningJob": "+kw_only",
        "TuningJob": "+kw_only",
        "TrainingJob": "+kw_only",
        "SavingJob": "+kw_only",
        "SearchOptions": "+kw_only",
    }

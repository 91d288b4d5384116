"""Declarations beside the packages: records are frozen, arguments are read, but for those named."""

from __future__ import annotations

from support.record_classes import unlike_the_others
from support.unused_arguments import unread


def test_records_are_declared_alike() -> None:
    assert unlike_the_others("") == {
        "AttentionOptions": "+kw_only",
        "LearningJob": "+kw_only",
        "TuningJob": "+kw_only",
        "TrainingJob": "+kw_only",
        "SavingJob": "+kw_only",
        "SearchOptions": "+kw_only",
    }


def test_each_argument_is_read() -> None:
    assert unread("") == {
        "config.settings_customise_sources: dotenv_settings",  # pydantic's signature
        "config.settings_customise_sources: file_secret_settings",  # pydantic's signature
    }

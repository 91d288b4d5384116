"""Declarations of attention: records are frozen, arguments are read, but for those named."""

from __future__ import annotations

from support.record_classes import unlike_the_others
from support.unused_arguments import unread


def test_records_are_declared_alike() -> None:
    assert unlike_the_others("attention") == {}


def test_each_argument_is_read() -> None:
    assert unread("attention") == {
        "attention.retrieval.learned_score.epanechnikov_score: dim",
        "attention.retrieval.learned_score.epanechnikov_score: hidden_dim",
        "attention.retrieval.learned_score.gaussian_score: dim",
        "attention.retrieval.learned_score.gaussian_score: hidden_dim",
    }

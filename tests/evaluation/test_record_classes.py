"""Records of evaluations are frozen and have slots."""

from __future__ import annotations

from support.record_classes import unlike_the_others


def test_records_are_declared_alike() -> None:
    assert unlike_the_others("evaluation") == {}

"""Declarations of the engine: records are frozen, arguments are read, but for those named."""

from __future__ import annotations

from support.record_classes import unlike_the_others
from support.unused_arguments import unread


def test_records_are_declared_alike() -> None:
    assert unlike_the_others("engine") == {
        "_Episode": "-frozen",
        "_State": "-frozen",
        "_Lately": "-frozen +eq=False",
        "SnapshotTokens": "+eq=False",
    }


def test_each_argument_is_read() -> None:
    assert unread("engine") == {
        "engine.indexing.tuning.retune_in_child: report",  # spawned processes' signature
    }

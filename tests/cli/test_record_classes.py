"""Records of the command line are frozen and have slots, but for those named here."""

from __future__ import annotations

from support.record_classes import unlike_the_others


def test_records_are_declared_alike() -> None:
    assert unlike_the_others("cli") == {
        "Folders": "-frozen",
    }

"""Declarations of the index: records are frozen, arguments are read, but for those named."""

from __future__ import annotations

from support.record_classes import unlike_the_others
from support.unused_arguments import unread


def test_records_are_declared_alike() -> None:
    assert unlike_the_others("index") == {
        "CorpusStatistics": "+eq=False",
        "TokenCodec": "+eq=False",
        "TokenTable": "+eq=False",
    }


def test_each_argument_is_read() -> None:
    assert unread("index") == {
        "index.dense.kinds._ivf: dim",  # as the others of its table
        "index.keyword.tokenizer._probe: stemmer",  # a key of its cache
    }

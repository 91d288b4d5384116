"""Declarations of the cluster: records are frozen, arguments are read, but for those named."""

from __future__ import annotations

from support.record_classes import unlike_the_others
from support.unused_arguments import unread


def test_records_are_declared_alike() -> None:
    assert unlike_the_others("cluster") == {}


def test_each_argument_is_read() -> None:
    assert unread("cluster") == {
        "cluster.training.finetune.make: device",  # shards have their own
    }

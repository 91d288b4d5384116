"""Declarations of the client: records are frozen, arguments are read, but for those named."""

from __future__ import annotations

from support.record_classes import unlike_the_others
from support.unused_arguments import unread


def test_records_are_declared_alike() -> None:
    assert unlike_the_others("client") == {}


def test_each_argument_is_read() -> None:
    assert unread("client") == {
        "client.local.models.wait_for_task: every_s",  # a task has ended with its call
        "client.local.models.wait_for_task: timeout_s",  # a task has ended with its call
        "client.remote_gradients.forward: states",  # for autograd
    }

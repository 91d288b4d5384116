"""Declarations of integrations: records are frozen, arguments are read, but for those named."""

from __future__ import annotations

from support.record_classes import unlike_the_others
from support.unused_arguments import unread


def test_records_are_declared_alike() -> None:
    assert unlike_the_others("integrations") == {}


def test_each_argument_is_read() -> None:
    assert unread("integrations") == {
        "integrations.langchain._get_relevant_documents: run_manager",
        "integrations.langchain.add_texts: kwargs",
        "integrations.langchain.from_texts: embedding",
        "integrations.langchain.from_texts: kwargs",
        "integrations.llama_index.add: add_kwargs",
        "integrations.llama_index.delete: delete_kwargs",
        "integrations.llama_index.delete_nodes: delete_kwargs",
    }

"""A framework is imported by its own adapter only."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from dsearch.errors import MissingExtra

FRAMEWORKS = ("langchain_core", "llama_index", "haystack", "mcp", "openai", "cohere")


def test_the_library_and_the_service_import_no_framework() -> None:
    code = (
        "import sys, dsearch.client, dsearch.integrations, dsearch.service.app; "
        f"print([name for name in {FRAMEWORKS} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_without_the_framework_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain_core.documents", None)
    monkeypatch.delitem(sys.modules, "dsearch.integrations.langchain", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'dsearch\[langchain\]'"):
        import_module("dsearch.integrations.langchain")

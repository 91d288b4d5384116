"""A framework is imported by its own adapter only."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from dsearch.errors import MissingExtra

FRAMEWORKS = ("langchain_core", "llama_index", "haystack", "mteb", "dspy", "mcp", "openai", "cohere")


def test_the_library_and_the_service_import_no_framework() -> None:
    code = (
        "import sys, dsearch.client, dsearch.integrations, dsearch.service.app; "
        f"print([name for name in {FRAMEWORKS} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("adapter", "module", "extra"),
    [
        ("langchain", "langchain_core", "langchain"),
        ("llama_index", "llama_index", "llama-index"),
        ("haystack", "haystack", "haystack"),
        ("mteb", "mteb", "mteb"),
        ("dspy", "dspy", "dspy"),
    ],
)
def test_without_the_framework_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, adapter: str, module: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"dsearch.integrations.{adapter}", raising=False)
    with pytest.raises(MissingExtra, match=rf"pip install 'dsearch\[{extra}\]'"):
        import_module(f"dsearch.integrations.{adapter}")

"""Building an index leaves JAX alone, which would take a GPU's memory."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from dsearch.index.keyword.without_jax import import_bm25s


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists once the JAX that is installed here was started; bm25s was not yet imported."""
    flag = tmp_path / "started"
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("")
    (tmp_path / "jax" / "lax.py").write_text(f"def top_k(*_):\n    open({str(flag)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("bm25s", "jax"):
            monkeypatch.delitem(sys.modules, name)
    return flag


def test_jax_is_not_started_and_can_be_imported_afterwards(started: Path) -> None:
    assert import_bm25s().BM25(method="lucene").method == "lucene"
    assert import_bm25s(".stopwords").STOPWORDS_GERMAN
    assert "jax" not in sys.modules
    assert not started.exists()
    importlib.import_module("jax.lax").top_k()
    assert started.exists()


def test_jax_that_is_in_use_stays_in_use(started: Path) -> None:
    theirs = importlib.import_module("jax.lax")
    import_bm25s()
    assert not started.exists()
    assert sys.modules["jax.lax"] is theirs
    assert importlib.import_module("jax").lax is theirs


def test_bm25s_by_itself_would_start_it(started: Path) -> None:
    """What the tests above are worth."""
    importlib.import_module("bm25s")
    assert started.exists()

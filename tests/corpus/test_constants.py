"""Constants that decide how documents are read."""

from __future__ import annotations

from typing import Any

import pytest
from support.written_down import differing

PROMISED: dict[str, dict[str, Any]] = {
    "corpus.columns": {
        "DECIDING_ROWS": 1000,
    },
    "corpus.made_queries": {
        "_STRETCH": (5, 14),
        "_LEFT_OUT": 0.4,
        "_FEWEST": 2,
    },
    "corpus.parts": {
        "LARGEST": 1 << 20,
        "PART": 262_144,
    },
    "corpus.python_docs": {
        "MIN_QUERY_WORDS": 3,
        "MIN_BODY_WORDS": 3,
    },
    "corpus.sentences": {
        "LOWER_CASE_WORDS": 12,
        "LOWER_CASE_STARTS": 5,
        "LOWER_CASE_SHARE": 0.8,
    },
    "corpus.strict_json": {
        "MAX_DEPTH": 64,
    },
}
"""Module → constants. A change of one is a change of what was measured or promised: it is made here too."""


@pytest.mark.parametrize("module", PROMISED)
def test_constants_are_those_that_were_promised(module: str) -> None:
    assert differing(module, PROMISED[module]) == {}

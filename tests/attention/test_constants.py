"""Constants that decide the formulas of attention and memory."""

from __future__ import annotations

from typing import Any

import pytest
from support.written_down import differing

PROMISED: dict[str, dict[str, Any]] = {
    "attention.adam": {
        "_BETAS": (0.9, 0.999),
        "_EPSILON": 1e-08,
    },
    "attention.late_interaction": {
        "START_STRENGTH": 0.75,
        "POWER": 6,
        "LEAD": 16,
    },
    "attention.memory_rows": {
        "START_TEMPERATURE": 0.05,
        "START_NULL_LEVEL": 0.5,
    },
    "attention.recall": {
        "NEAREST": 64,
        "NEIGHBOURS": 5,
        "LENDING": 0.03,
        "LENDING_LEVEL": 0.5,
        "KEY_SHARE": 0.5,
    },
    "attention.retrieval.fixed_head": {
        "START_TEMPERATURE": 0.05,
        "START_KEYWORD_WEIGHT": 1.0,
    },
    "attention.retrieval.head": {
        "MAX_OUTPUT_DIM": 4096,
        "MAX_EXCITATION": 1024,
    },
    "attention.retrieval.learned_score": {
        "_HIDDEN_DIM": 64,
        "_MOST_HIDDEN": 4096,
    },
    "attention.retrieval.memory": {
        "ALIKE": 0.98,
    },
    "attention.retrieval.monotone": {
        "MOST_FIELDS": 8,
        "LOW": 0.05,
        "HIGH": 0.95,
        "_DAY_S": 86400.0,
    },
    "attention.retrieval.null_slot": {
        "SLOT_CANDIDATES": 10,
    },
}
"""Module → constants. A change of one is a change of what was measured or promised: it is made here too."""


@pytest.mark.parametrize("module", PROMISED)
def test_constants_are_those_that_were_promised(module: str) -> None:
    assert differing(module, PROMISED[module]) == {}

"""Constants that decide what an answer says of its confidence."""

from __future__ import annotations

from typing import Any

import pytest
from support.written_down import differing

PROMISED: dict[str, dict[str, Any]] = {
    "evaluation.calibration": {
        "BINS": 10,
    },
    "evaluation.confidence": {
        "FEWEST_JUDGED": 50,
        "FEWEST_OF_A_KIND": 10,
        "MOST_REFUSED": 0.03,
        "MOST_MADE_REFUSED": 0.02,
        "LEAST_REFUSED": 0.9,
        "FLOOR_QUANTILE": 0.05,
        "LIKELY": 0.7,
        "POSSIBLE": 0.4,
    },
    "evaluation.logistic": {
        "_RIDGE": 1.0,
        "_STEPS": 50,
    },
    "evaluation.near": {
        "FEWEST": 50,
        "MOST_REFUSED": 0.03,
        "_SHARPNESS": 0.05,
        "_MATCH_SHARPNESS": 0.1,
        "_FOLLOWING": 10,
    },
}
"""Module → constants. A change of one is a change of what was measured or promised: it is made here too."""


@pytest.mark.parametrize("module", PROMISED)
def test_constants_are_those_that_were_promised(module: str) -> None:
    assert differing(module, PROMISED[module]) == {}

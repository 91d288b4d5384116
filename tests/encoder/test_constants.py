"""Constants that decide which back end may run an encoder."""

from __future__ import annotations

from typing import Any

import pytest
from support.written_down import differing

PROMISED: dict[str, dict[str, Any]] = {
    "encoder.automatic.agreement": {
        "LEAST_CLOSE": 0.999,
        "LEAST_INT8": 0.98,
        "LEAST_STATES": 0.9999,
    },
    "encoder.automatic.outcome": {
        "LEAST_COSINE": 0.9999,
    },
    "encoder.load": {
        "GAIN": 1.1,
    },
}
"""Module → constants. A change of one is a change of what was measured or promised: it is made here too."""


@pytest.mark.parametrize("module", PROMISED)
def test_constants_are_those_that_were_promised(module: str) -> None:
    assert differing(module, PROMISED[module]) == {}

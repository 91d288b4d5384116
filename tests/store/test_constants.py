"""Constants that decide what may be stored."""

from __future__ import annotations

from typing import Any

import pytest
from support.written_down import differing

PROMISED: dict[str, dict[str, Any]] = {
    "store.documents.validate": {
        "MAX_ID_BYTES": 512,
        "MAX_TITLE_BYTES": 65_536,
        "MAX_TEXT_BYTES": 1 << 20,
        "MAX_METADATA_BYTES": 1 << 20,
        "MAX_VALUE_NUMBERS": 65_536,
    },
    "store.feedback.store": {
        "MAX_EVENTS_OF_KEY": 200_000,
        "MAX_BYTES": 1024 << 20,
    },
    "store.filters.parse": {
        "MAX_DEPTH": 16,
        "MAX_CONDITIONS": 256,
        "MAX_OPERANDS": 10_000,
        "MAX_OPERAND_CHARACTERS": 4096,
    },
    "store.folders": {
        "MAX_DIMENSION": 16_384,
    },
    "store.metadata": {
        "MAX_METADATA_DEPTH": 32,
        "_LEAST_INTEGER": -9223372036854775808,
        "_GREATEST_INTEGER": 9_223_372_036_854_775_807,
    },
    "store.proof": {
        "_SHARE": 100,
    },
    "store.reader": {
        "MAX_FACETS": 1000,
    },
    "store.sqlite.schema": {
        "APPLICATION_ID": 1_685_284_193,
    },
}
"""Module → constants. A change of one is a change of what was measured or promised: it is made here too."""


@pytest.mark.parametrize("module", PROMISED)
def test_constants_are_those_that_were_promised(module: str) -> None:
    assert differing(module, PROMISED[module]) == {}

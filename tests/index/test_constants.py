"""Constants that decide what is found, and the bounds of the index."""

from __future__ import annotations

from typing import Any

import pytest
from support.written_down import differing

PROMISED: dict[str, dict[str, Any]] = {
    "index.dense.kinds": {
        "EXHAUSTIVE_BELOW": 20_000,
        "BOUNDS": {"nprobe": (1, 65536), "ef_search": (1, 4096), "k_factor": (1, 64)},
        "ROWS_PER_LIST": 39,
    },
    "index.dense.tuning": {
        "RECALL_AT": 10,
        "RECALL_TARGET": 0.99,
    },
    "index.keyword.index": {
        "K1": 1.5,
    },
    "index.keyword.languages": {
        "_PLAUSIBLE": 0.3333333333333333,
    },
    "index.keyword.spelling": {
        "SHORTEST": 4,
        "LEAST_SIMILARITY": 0.6,
    },
    "index.keyword.tokenizer": {
        "TOKENIZER_VERSION": 1,
        "SEVERAL_LANGUAGES_VERSION": 2,
    },
    "index.metadata": {
        "MAX_FIELDS": 256,
        "MAX_VALUES": 1 << 20,
    },
    "index.tokens.codec": {
        "BITS": (4, 8),
        "_CLIPPED_AT": {4: 2.7, 8: 5.0},
    },
}
"""Module → constants. A change of one is a change of what was measured or promised: it is made here too."""


@pytest.mark.parametrize("module", PROMISED)
def test_constants_are_those_that_were_promised(module: str) -> None:
    assert differing(module, PROMISED[module]) == {}

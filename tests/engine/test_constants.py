"""Constants that decide what the engine promises, and its formulas."""

from __future__ import annotations

from typing import Any

import pytest
from support.written_down import differing

PROMISED: dict[str, dict[str, Any]] = {
    "engine.calls": {
        "MAX_MODELS": 10_000,
    },
    "engine.draws": {
        "SAMPLES": (2, 64),
        "MAX_QUERIES": 64,
        "MAX_LEARNING_RATE": 1.0,
        "_LARGEST_REWARD": 1000000.0,
    },
    "engine.episodes": {
        "MAX_PAGES": 100,
        "MAX_READ": 1000,
    },
    "engine.feedback": {
        "MAX_EXPLORE": 0.2,
        "DEPTH": 10,
    },
    "engine.indexing.chunking": {
        "MIN_TOKENS": 16,
        "_OVERLAP_SHARE": 8,
        "_TITLE_SHARE": 4,
    },
    "engine.indexing.leases": {
        "KEEP": 3,
    },
    "engine.indexing.own_vectors": {
        "_TOLERANCE": 0.001,
    },
    "engine.indexing.tokens": {
        "DIMS": 64,
        "BITS": 4,
        "ALIKE": 0.9,
        "MOST_TOKENS": 1024,
    },
    "engine.models.confidence": {
        "CANDIDATES": 100,
    },
    "engine.models.drafts": {
        "MAX_DRAFTS": 8,
        "MAX_DRAWS": 64,
        "MAX_DRAW_BYTES": 16 << 20,
    },
    "engine.models.tensors": {
        "MAX_HEADS": 64,
        "_TEMPERATURES": (1e-06, 1000000.0),
    },
    "engine.models.training_record": {
        "HALF_LIFE": 500,
        "LEAST": 30,
    },
    "engine.options": {
        "EVIDENCE": 10,
        "DEFAULT_SAMPLES": 8,
        "MAX_SEARCH_FIELDS": 16,
    },
    "engine.ranking.ranker": {
        "HOP_CANDIDATES": 10,
    },
    "engine.ranking.scores": {
        "EQUAL": 0.001,
    },
    "engine.ranking.second_stage": {
        "_SHARPNESS": 0.05,
        "_NEARNESS": 0.1,
        "_FEEDBACK": 10,
    },
    "engine.rebuild": {
        "MINIMUM": 1000,
        "QUERIES": 400,
    },
    "engine.search.arrangement": {
        "POOL": 100,
    },
    "engine.search.highlights.fragments": {
        "FRAGMENTS": 3,
        "FRAGMENT_CHARACTERS": 200,
    },
    "engine.search.highlights.meaning": {
        "LIKE": 0.5,
        "NEARLY": 0.95,
    },
    "engine.search.predict_whole": {
        "MAX_LABELS": 1000,
    },
    "engine.search.similar": {
        "ALPHA": 1.0,
        "BETA": 0.75,
        "GAMMA": 0.15,
        "MAX_EXAMPLES": 100,
    },
    "engine.state.fields": {
        "MAX_FIELDS": 4,
    },
}
"""Module → constants. A change of one is a change of what was measured or promised: it is made here too."""


@pytest.mark.parametrize("module", PROMISED)
def test_constants_are_those_that_were_promised(module: str) -> None:
    assert differing(module, PROMISED[module]) == {}

"""Constants that decide what is learned and what goes live."""

from __future__ import annotations

from typing import Any

import pytest
from support.written_down import differing

PROMISED: dict[str, dict[str, Any]] = {
    "training.confidence": {
        "MADE": 160,
        "NONSENSE": 48,
        "FEWEST_MADE": 12,
        "_MOVED": 0.2,
        "_SCORES_AS_RIGHT": 0.25,
    },
    "training.data.actions": {
        "_ENOUGH_CLICKS": 10,
        "_APART": 0.5,
    },
    "training.data.agreement": {
        "_SAYS_SOMETHING": 0.001,
        "_QUORUM": 2,
        "_ENOUGH": 3,
        "_MOST_CONTRADICTED": 0.5,
    },
    "training.data.clicks": {
        "MANY_KEYS": 20,
        "_MOST_OF_ONE": 10,
        "_MOST_WEIGHT": 2.0,
    },
    "training.data.examples": {
        "STRENGTHS": (0.0, 0.8, 0.9, 0.95),
        "MOST": 32,
    },
    "training.data.outcomes": {
        "LEFT": 0.2,
        "MOST_ROWS": 10_000,
    },
    "training.data.propensity": {
        "POSITIONS": 10,
        "MIN_CLICKS": 50,
        "ASSUMED_STEEPNESS": 1.0,
        "_LAW_SPREAD": 0.5,
        "_STEEPNESS_SPREAD": 1.0,
        "_STEPS": 50,
    },
    "training.data.synthesis": {
        "LEAST_CHARACTERS": 80,
    },
    "training.data.user_queries": {
        "MOST_JUDGING": 400,
        "FEWEST_JUDGING": 20,
        "_SHARE": 5,
        "_FIRST_WORDS": 10,
        "_FEWEST_WORDS": 2,
    },
    "training.data.writer": {
        "_WRITTEN_TOKENS": 28,
        "_GUIDANCE": 1.5,
    },
    "training.finetune.feedback": {
        "_CONDENSED_FROM": 100,
    },
    "training.finetune.null_slot": {
        "FOLDS": 3,
        "MIN_UNANSWERABLE": 10,
    },
    "training.finetune.outcomes": {
        "_FOLDS": 10,
        "_SAME": 0.99999,
        "_FEWEST": 20,
    },
    "training.finetune.second_stage": {
        "STRENGTHS": (0.25, 0.5, 0.75, 1.0, 1.5),
        "PULLS": (0.03, 0.1, 0.3, 1.0),
        "MIN_QUERIES": 40,
        "_FOLDS": 5,
        "_STEPS": 40,
    },
    "training.finetune.strength": {
        "MIN_QUERIES": 20,
    },
    "training.finetune.token_matrix": {
        "PULL": 0.1,
        "EPOCHS": 8,
        "_RATE": 0.002,
        "_BATCH": 16,
    },
    "training.finetune.training": {
        "MIN_HELD_OUT": 10,
    },
    "training.gate.compare": {
        "SAMPLES": 10_000,
    },
    "training.gate.decision": {
        "SAMPLES": 10_000,
        "POWER": 0.8,
        "MOST_FURTHER": 100_000,
        "_TYPICAL_DEVIATION": 0.15,
        "_TYPICAL_COUNT": 8.0,
    },
    "training.gate.gate": {
        "CANARIES": 200,
        "CLAIMS": (0.8, 0.2),
    },
    "training.gate.held_out": {
        "ENOUGH": 500,
        "MOST": 1000,
        "FEW_QUERIES": 100,
        "LITTLE_MISSING": 0.02,
        "MOST_ANSWERED": 0.95,
        "_SHALLOW": 10,
        "_DEEP": 100,
        "AGREEMENT": 0.8,
        "FEWEST": 3,
    },
    "training.gate.selection": {
        "_HARM": 2.0,
        "MIN_SLICE": 20,
        "SHARES": (0.25, 0.5, 0.75, 1.0),
        "KEYWORD_FACTORS": (1.0, 1.3, 1.6, 2.0),
        "MEMORY_SHARES": (0.5, 1.0),
    },
    "training.judging": {
        "MOST_ASKED": 200,
        "MADE": 40,
    },
    "training.loop.loop": {
        "WARM_UP_SHARE": 0.1,
    },
    "training.losses.objectives": {
        "REWARD_SAMPLES": 32,
    },
    "training.memory": {
        "_FOLDS": 10,
        "_FEWEST": 20,
        "_FIRMNESS": 0.1,
    },
    "training.memory_values": {
        "_NEAREST": 64,
        "STRENGTHS": (0.1, 0.2, 0.4, 0.8, 1.5),
        "TEMPERATURES": (0.03, 0.05, 0.07),
        "NULL_LEVELS": (0.3, 0.5, 0.7),
        "LENDINGS": (0.0, 0.5, 1.0),
        "_ROUNDS": 5,
        "_EPISODE_PARTS": 4,
        "_POOL": 100,
        "_RELEVANT": 200,
    },
    "training.relevant": {
        "DEPTH": 10,
    },
    "training.saving": {
        "_STEPS": 4,
    },
    "training.scopes.head": {
        "_SCALARS_LEARN_FASTER": 3.0,
    },
    "training.tune": {
        "KEYWORDS_ALONE": 30.0,
        "KEYWORD_WEIGHTS": (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.5, 5.0, 30.0),
        "HOP_STRENGTHS": (0.25, 0.5, 1.0, 2.0, 3.0),
        "WEIGHTINGS": ((0.9, 0.4), (0.5, 0.4)),
        "MIN_QUERIES": 10,
        "MOST_QUERIES": 400,
        "_FEWEST_DRAWN": 50,
        "_FOLDS": 10,
    },
    "training.values.context": {
        "CONTRAST_TEMPERATURE": 0.07,
        "_PENALTIES": (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0),
        "_SCALES": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
    },
    "training.values.examples": {
        "MIN_DOCUMENTS": 10,
        "MAX_LABELS": 1000,
    },
    "training.values.losses": {
        "SMOOTHING": 0.01,
    },
}
"""Module → constants. A change of one is a change of what was measured or promised: it is made here too."""


@pytest.mark.parametrize("module", PROMISED)
def test_constants_are_those_that_were_promised(module: str) -> None:
    assert differing(module, PROMISED[module]) == {}

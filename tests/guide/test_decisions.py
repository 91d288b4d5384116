"""The guide of decisions: each has a context, a decision and a consequence, in at most sixty words."""

from __future__ import annotations

import re

from dsearch.guide import guide

MOST_WORDS = 60
_DECISION = re.compile(r"^### (.+)\n\n((?:(?!#).+\n?)+)", re.MULTILINE)


def test_every_decision_is_short_and_complete() -> None:
    decisions = _DECISION.findall(guide("decisions"))
    assert len(decisions) == guide("decisions").count("\n### ") > 40
    for heading, text in decisions:
        words = text.split()
        assert len(words) <= MOST_WORDS, heading
        labels = [word for word in words if word.startswith("**")]
        assert labels == ["**Context.**", "**Decision.**", "**Consequence.**"], heading

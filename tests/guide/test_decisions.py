"""The guide of decisions: each has a context, a decision and a consequence."""

from __future__ import annotations

import re

from dsearch.guide import guide

_DECISION = re.compile(r"^### (.+)\n\n((?:(?!#).+\n?)+)", re.MULTILINE)


def test_every_decision_is_complete() -> None:
    decisions = _DECISION.findall(guide("decisions"))
    assert len(decisions) == guide("decisions").count("\n### ")
    for heading, text in decisions:
        words = text.split()
        labels = [word for word in words if word.startswith("**")]
        assert labels == ["**Context.**", "**Decision.**", "**Consequence.**"], heading

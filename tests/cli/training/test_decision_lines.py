"""The gate's decision on a terminal; records of earlier versions have none."""

from __future__ import annotations

import json

import numpy as np

from dsearch.cli.training import decision_lines, gate_lines, leg_lines
from dsearch.training.gate.gate import judge
from dsearch.training.gate.held_out import Answers

OLD = {"verdict": "refused", "reason": "it did not rise", "p_value": 0.3, "alpha": 0.05, "slices": []}


def test_a_decision_is_shown_in_words() -> None:
    values = np.random.default_rng(0).uniform(0, 1, 60)
    before = Answers(values, np.zeros(60, bool), values)
    changes = np.random.default_rng(1).normal(0.02, 0.15, 60)
    after = Answers(values + changes, np.zeros(60, bool), values + changes)
    gate = json.loads(json.dumps(judge(before, after).to_dict()))
    (text,) = gate_lines({"gate": gate, "reason": gate["reason"], "live": False})
    assert text == judge(before, after).to_text()
    assert gate["decision"]["text"] in text


def test_records_without_a_decision_are_still_shown() -> None:
    assert decision_lines({"gate": OLD}) == []
    assert decision_lines({"gate": {**OLD, "decision": None}}) == []
    assert decision_lines({"gate": None}) == decision_lines({}) == []


def test_the_better_leg_is_named() -> None:
    (line,) = leg_lines({"scores": {"untuned": 0.5, "dense": 0.52, "keyword": 0.4, "tuned": 0.55}})
    assert line.strip().startswith("dense alone answers the judged queries better")
    assert "0.5200 against 0.5000" in line
    assert leg_lines({"scores": {"untuned": 0.5, "dense": 0.5, "keyword": 0.4}}) == []
    assert leg_lines({}) == leg_lines({"scores": {"validated": 0.5}}) == []

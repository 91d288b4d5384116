"""Say the gate's decision in one plain sentence, from the report as it is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from dsearch.hints import amount
from dsearch.training.gate.held_out import FEW_QUERIES

Outcome = Literal["live", "accepted", "kept", "outdated", "tuned", "remembered"]
"""It answers now, by its merits or by consent; it does not answer; nor does it after a comparison with a
version that is live no more; the tuned search beside it does; it answers by what users and agents did."""


def sentence_of(gate: Mapping[str, Any], outcome: Outcome) -> str:
    """Return how many held-out queries got better and worse, by how much, and what follows.

    Args:
        gate: `GateReport.to_dict`, of the version that answers now or would have.
        outcome: what became of the version.
    """
    named = {"tuned": "The tuned search", "remembered": "The memory of past queries"}.get(
        outcome, "The new version"
    )
    whole = next((part for part in gate.get("slices", ()) if part["name"] == "all"), None)
    if whole is None or not whole["queries"] or whole["difference"] is None:
        return f"No query was held out, so nobody can tell whether it is better: {_end(gate, outcome)}"
    measure, difference = gate.get("measure", "nDCG@10"), whole["difference"]
    figures = (
        f"{measure} {_short(whole['before'])} → {_short(whole['after'])}, "
        f"95 % {_short(difference['low'])} to {_short(difference['high'])}"
    )
    queries, wins, losses = whole["queries"], gate.get("wins"), gate.get("losses")
    noun = "query" if queries == 1 else "queries"
    if wins is None or losses is None:
        return f"{named} was compared on {queries} held-out {noun} ({figures}): {_end(gate, outcome)}"
    counts = f"answers {wins} of {queries} {noun} better and {losses} worse"
    return f"{named} {counts} ({figures}): {_end(gate, outcome)}"


def missing_queries(judged: int) -> int:
    """Return the number of further judged queries that reliable training needs."""
    return max(0, FEW_QUERIES - judged)


def _end(gate: Mapping[str, Any], outcome: Outcome) -> str:
    if outcome in ("live", "tuned", "remembered"):
        return "it is live."
    if outcome == "accepted":
        return "it is live, as you asked."
    if outcome == "outdated":
        return "it is not live, since another version became live after the comparison."
    why, decision = _why_not(gate), gate.get("decision") or {}
    further = decision.get("further_queries")
    more = f"; about {amount(further, 'more judged query')} would settle it" if further else ""
    return f"it is not live, since {why}{more}."


def _why_not(gate: Mapping[str, Any]) -> str:
    whole, *parts = gate["slices"]
    if whole["difference"] is None and "no trusted slice" in gate.get("reason", ""):
        return "it learned from feedback, and no judgements were given that are trusted to judge it"
    if whole["difference"] is None:
        return (
            f"at least {amount(gate.get('min_queries', 10), 'judged query is', 'judged queries are')} needed"
        )
    if whole["queries"] < gate.get("min_queries", 0):
        return f"{amount(whole['queries'], 'held-out query is', 'held-out queries are')} too few"
    if whole["difference"]["mean"] <= 0:
        return "it did not get better"
    for part in parts:
        if part.get("harm") is not None and part["harm"] > gate["harm"]:
            kind = "judged before" if part["name"] == "seen" else "not judged before"
            return f"queries about documents {kind} may lose by it"
    if gate.get("verdict") == "passed":
        return "it was not to be"
    return "the gain may be chance"


def _short(number: float) -> str:
    """Three digits, without the zero before the point."""
    text = f"{number:.3f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text

"""The gate's decision in one sentence that a person can read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dsearch.training.finetune.feedback import NO_TRUST
from dsearch.training.gate.decision import missing_queries, sentence_of
from dsearch.training.gate.gate import Gate, judge
from dsearch.training.gate.held_out import Answers


def _report(
    changes: np.ndarray, *, seen: np.ndarray | None = None, gate: Gate | None = None
) -> dict[str, Any]:
    before = np.full(len(changes), 0.5)
    seen = np.zeros(len(changes), bool) if seen is None else seen
    unseen = np.where(seen, np.nan, before)
    after = before + changes
    return judge(
        Answers(before, seen, unseen), Answers(after, seen, np.where(seen, np.nan, after)), gate, samples=500
    ).to_dict()


def test_a_gain_is_said_with_its_counts_and_interval() -> None:
    changes = np.concatenate([np.full(61, 0.2), np.full(24, -0.1), np.zeros(415)])
    said = sentence_of(_report(changes), "live")
    assert said.startswith(
        "The new version answers 61 of 500 queries better and 24 worse (nDCG@10 .500 → .520, 95 % .0"
    )
    assert said.endswith("): it is live.")
    assert sentence_of(_report(changes), "tuned").startswith("The tuned search answers 61 of 500")
    assert sentence_of(_report(changes), "accepted").endswith("it is live, as you asked.")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (np.full(60, -0.1), "it did not get better"),
        (np.concatenate([np.full(5, 0.2), np.full(4, -0.2), np.zeros(51)]), "the gain may be chance"),
        (np.full(4, 0.3), "4 held-out queries are too few"),
    ],
)
def test_a_version_that_is_kept_says_why(changes: np.ndarray, reason: str) -> None:
    assert f"it is not live, since {reason}" in sentence_of(_report(changes), "kept")


def test_harm_is_said_by_what_it_is_about() -> None:
    changes = np.concatenate([np.full(200, 0.2), np.full(50, -0.2)])
    seen = np.arange(250) < 200
    said = sentence_of(_report(changes, seen=seen), "kept")
    assert "queries about documents not judged before may lose by it" in said


def test_nothing_held_out_and_reports_of_earlier_releases() -> None:
    said = sentence_of(judge(None, None).to_dict(), "kept")
    assert said == (
        "No query was held out, so nobody can tell whether it is better: it is not live, since at least 10 "
        "judged queries are needed."
    )
    untrusted = replace(judge(None, None), reason=NO_TRUST).to_dict()
    assert sentence_of(untrusted, "kept").endswith(
        "it is not live, since it learned from feedback, and no judgements were given that are trusted to "
        "judge it."
    )
    older = _report(np.full(60, 0.1))
    del older["wins"], older["losses"]
    assert sentence_of(older, "live").startswith("The new version was compared on 60 held-out queries (")


def test_the_missing_queries_are_counted() -> None:
    assert [missing_queries(count) for count in (0, 99, 100, 500)] == [100, 1, 0, 0]

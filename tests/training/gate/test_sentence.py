"""The gate's decision in one sentence that a person can read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dsearch.training.finetune.feedback import NO_TRUST
from dsearch.training.gate.decision import sentence_of
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
        "The new version answers 61 of 500 queries better and 24 worse (nDCG@10 .500 → .520, change +.0"
    )
    assert said.endswith(" at 95 %): it is live.")
    assert sentence_of(_report(changes), "tuned").startswith("The tuned search answers 61 of 500")
    assert sentence_of(_report(changes), "accepted").endswith("it is live, as you asked.")


_KEPT = "it is not live, since "


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        (np.full(60, -0.1), "it did not get better; the search stays as it was."),
        (np.zeros(60), "it did not get better; the search stays as it was."),
        (
            np.concatenate([np.full(5, 0.2), np.full(4, -0.2), np.zeros(51)]),
            "the gain may be chance; about 4,500 more judged queries would settle it.",
        ),
        (
            np.tile([0.0003, -0.0002, 0.1, -0.1], 50),
            "the gain may be chance; it is too small for more queries to tell.",
        ),
        (
            np.full(4, 0.3),
            "4 held-out queries are too few to judge by; about 6 more judged queries would settle it.",
        ),
        (
            np.full(1, 0.3),
            "1 held-out query is too few to judge by; about 9 more judged queries would settle it.",
        ),
    ],
)
def test_a_version_that_is_kept_says_why_and_what_to_do(changes: np.ndarray, end: str) -> None:
    assert sentence_of(_report(changes), "kept").endswith(f" at 95 %): {_KEPT}{end}")


def test_a_version_that_passed_is_kept_or_live_by_request_alone() -> None:
    passed = _report(np.full(60, 0.1))
    assert sentence_of(passed, "kept").endswith(
        ": it is not live, as you asked; promote it to let it answer."
    )
    assert sentence_of(passed, "outdated").endswith(
        f"{_KEPT}another version became live after the comparison; compare the two."
    )


def test_nothing_held_out_and_reports_of_earlier_releases() -> None:
    said = sentence_of(judge(None, None).to_dict(), "kept")
    assert said == (
        "No query was held out, so nobody can tell whether it is better: it is not live, since at least 10 "
        "judged queries are needed."
    )
    untrusted = replace(judge(None, None), reason=NO_TRUST).to_dict()
    assert sentence_of(untrusted, "kept").endswith(
        "it is not live, since it learned from feedback, and no judgements were given that are trusted to "
        "judge it; train again with judgements beside the feedback."
    )
    older = _report(np.full(60, 0.1))
    del older["wins"], older["losses"]
    assert sentence_of(older, "live").startswith(
        "The new version was compared on 60 queries that were held out ("
    )

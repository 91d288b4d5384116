"""The gate's decision in one sentence that a person can read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dsearch.training.finetune.feedback import NO_TRUST
from dsearch.training.gate.decision import LIKE_USERS, LOGGED, missing_queries, sentence_of
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


def test_a_change_that_rounds_to_nothing_has_no_sign() -> None:
    said = sentence_of(_report(np.tile([0.0003, -0.0003], 50)), "kept")
    assert "(nDCG@10 .500 → .500, change .000 to .000 at 95 %)" in said


def test_the_tuned_search_is_named_with_its_memory() -> None:
    said = sentence_of(_report(np.full(60, 0.1)), "recalling")
    assert said.startswith("The tuned search with a memory of past queries answers 60 of 60 queries better")


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


def test_harm_is_said_by_what_it_is_about() -> None:
    changes = np.concatenate([np.full(200, 0.2), np.full(50, -0.2)])
    said = sentence_of(_report(changes, seen=np.arange(250) < 200), "kept")
    assert said.endswith(
        f"{_KEPT}queries about documents not judged before may lose by it; "
        "judge more of them and train again."
    )
    said = sentence_of(_report(changes, seen=np.arange(250) >= 200), "kept")
    assert f"{_KEPT}queries about documents judged before may lose by it; " in said
    strict = _report(np.full(50, 0.2), seen=np.ones(50, bool), gate=Gate(margin=0.0, harm=0.01))
    assert sentence_of(strict, "kept").endswith(
        f"{_KEPT}no held-out query is about documents not judged before; judge some that are and train again."
    )


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        (
            f"90 {LIKE_USERS}, with keywords: …",
            "queries made of other documents may lose by it; train on judged queries instead.",
        ),
        (
            f"30 {LOGGED}, with keywords: …",
            "queries that users asked may lose by it; train on judged queries instead.",
        ),
        ("accuracy falls by 0.2000 (allowed 0.02)", "accuracy falls by 0.2000 (allowed 0.02)."),
    ],
)
def test_a_significant_gain_that_another_check_refuses_is_no_chance(reason: str, end: str) -> None:
    refused = {**_report(np.full(60, 0.1)), "verdict": "refused", "reason": reason}
    assert sentence_of(refused, "kept").endswith(f" at 95 %): {_KEPT}{end}")


def test_a_version_that_passed_is_kept_or_live_by_request_alone() -> None:
    passed = _report(np.full(60, 0.1))
    assert sentence_of(passed, "kept").endswith(
        ": it is not live, as you asked; promote it to let it answer."
    )
    assert sentence_of(passed, "outdated").endswith(
        f"{_KEPT}another version became live after the comparison; compare the two."
    )


def test_examples_of_other_measures_are_no_queries() -> None:
    changes = np.concatenate([np.full(30, 0.2), np.full(29, -0.2)])
    before = np.full(59, 0.5)
    none = np.zeros(59, bool)
    report = judge(
        Answers(before, none, before),
        Answers(before + changes, none, before),
        measure="accuracy",
        samples=500,
    ).to_dict()
    said = sentence_of(report, "kept")
    assert said.startswith(
        "The new version answers 30 of 59 examples better and 29 worse (accuracy .500 → .503"
    )
    assert " more judged examples would settle it." in said


def test_no_change_is_said_as_such() -> None:
    assert sentence_of(_report(np.zeros(60)), "kept").startswith(
        "The new version answers 60 queries as well as before (nDCG@10 .500 → .500, change .000 to .000"
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


def test_the_missing_queries_are_counted() -> None:
    assert [missing_queries(count) for count in (0, 99, 100, 500)] == [100, 1, 0, 0]

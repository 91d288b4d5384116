"""The gate lets through what is better, and nothing by luck; it says when it cannot tell."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection
from dsearch.errors import InvalidRequest
from dsearch.jobs import RISKS, SavingJob
from dsearch.training.gate.decision import (
    SLICE_PRIOR,
    further_for_significance,
    further_for_slice,
    sign_flip_p_value,
)
from dsearch.training.gate.gate import Gate, judge, judge_scores, overlap_of_canaries
from dsearch.training.gate.held_out import Answers
from dsearch.training.relevant import ndcg_at_10

QUERIES = 120


def answers(values: np.ndarray, seen: np.ndarray | None = None) -> Answers:
    seen = np.arange(len(values)) % 2 == 0 if seen is None else seen
    return Answers(values, seen, np.where(seen, np.nan, values))


def test_a_real_gain_passes_and_the_report_says_everything() -> None:
    generator = np.random.default_rng(0)
    before = generator.uniform(0, 1, QUERIES)
    report = judge(answers(before), answers(before + 0.1), canary_overlap=0.7)
    assert report.passed
    assert report.p_value is not None
    assert report.p_value < 0.001
    assert [one.queries for one in report.slices] == [120, 60, 60]
    text = report.to_text()
    asked = ("p ≤ 0.05", "more than 0.02", "10 held-out queries", "keep 70%")
    for part in ("gate: passed", "more than 99 in 100 that it helps", "unseen", *asked):
        assert part in text
    stored = json.loads(json.dumps(report.to_dict()))
    assert (stored["verdict"], stored["alpha"], stored["margin"]) == ("passed", 0.05, 0.02)
    assert stored["slices"][2]["name"] == "unseen"


def test_a_slice_that_falls_refuses_whatever_the_rest_gains() -> None:
    before = np.full(QUERIES, 0.5)
    seen = np.arange(QUERIES) < 60
    after = np.where(seen, 0.9, 0.5 - 0.021)
    report = judge(answers(before, seen), answers(after, seen))
    assert report.verdict == "refused"
    assert "on unseen documents nDCG@10 falls by 0.0210 (0.5000 → 0.4790) over 60" in report.reason
    assert "that they lose more than 0.02 (allowed 0.1)" in report.reason
    within = np.where(seen, 0.9, 0.5 - 0.003)
    assert judge(answers(before, seen), answers(within, seen)).passed
    assert judge(answers(before, seen), answers(after, seen), Gate(margin=0.06)).passed


def test_what_does_not_rise_is_refused() -> None:
    before = np.full(QUERIES, 0.5)
    assert "did not rise" in judge(answers(before), answers(before)).reason
    assert judge(answers(before), answers(before - 0.01)).verdict == "refused"
    noisy = before + np.random.default_rng(3).normal(0.01, 0.3, QUERIES)
    report = judge(answers(before), answers(noisy), Gate(margin=0.5))
    assert report.verdict == "refused"
    assert "not significant" in report.reason


def test_small_slices_have_no_veto() -> None:
    before = np.full(QUERIES, 0.5)
    noise = np.random.default_rng(0).normal(0.0, 0.1, QUERIES)
    for few in (0, 1, 5, 20):
        seen = np.arange(QUERIES) >= few
        noise[~seen] -= noise[~seen].mean() if few else 0.0
        after = before + np.where(seen, 0.1, 0.0) + noise
        report = judge(answers(before, seen), answers(after, seen))
        assert report.passed, (few, report.reason)
        assert report.slice("unseen").queries == few
        harm = report.slice("unseen").harm
        assert harm is not None
        assert 0.01 < harm <= SLICE_PRIOR.below(-0.02)
    # No two queries share a document: nothing can be seen, so unseen documents are the whole.
    none_seen = np.zeros(QUERIES, bool)
    report = judge(answers(before, none_seen), answers(before + 0.2, none_seen))
    assert report.passed
    assert (report.slice("seen").harm, report.slice("unseen").harm) == (None, None)


def test_a_clear_fall_on_few_documents_refuses() -> None:
    """As on 27 of 864 queries that fell from .274 to .200, with deviations of real changes (.05 to .18)."""
    generator = np.random.default_rng(1)
    before = np.full(864, 0.4)
    seen = np.arange(864) >= 27
    for deviation in (0.05, 0.1, 0.15, 0.2):
        noise = generator.normal(0, deviation, 864)
        noise[~seen] = (noise[~seen] - noise[~seen].mean()) * deviation / noise[~seen].std()
        after = before + np.where(seen, 0.04, -0.074) + noise
        report = judge(answers(before, seen), answers(after, seen))
        assert report.verdict == "refused", report.reason
        assert "on unseen documents nDCG@10 falls by 0.0740 (0.4000 → 0.3260) over 27" in report.reason
        assert judge(answers(before, seen), answers(after, seen), Gate(harm=0.9)).passed
    ten = np.arange(QUERIES) >= 10
    fallen = np.where(ten, 0.9, 0.1)
    report = judge(answers(np.full(QUERIES, 0.5), ten), answers(fallen, ten))
    assert report.verdict == "refused"
    assert "over 10 held-out queries" in report.reason


def test_a_slice_in_doubt_says_how_many_queries_would_settle_it() -> None:
    before = np.full(QUERIES, 0.5)
    seen = np.arange(QUERIES) >= 60
    noise = np.random.default_rng(0).normal(0.0, 0.05, QUERIES)
    noise[~seen] -= noise[~seen].mean()
    for change, known in ((-0.0199, False), (-0.017, True)):
        after = before + np.where(seen, 0.3, change) + noise
        report = judge(answers(before, seen), answers(after, seen), Gate(harm=0.05))
        assert report.verdict == "cannot tell"
        assert f"falls by {-change:.4f}" in report.reason
        assert report.decision is not None
        assert (report.decision.further_queries is not None) == known
        assert ("would settle it" in report.to_text()) == known


def test_queries_are_asked_for_in_all_of_which_a_slice_has_its_share() -> None:
    """A slice of a quarter that needs n more needs four times as many as they come."""
    before, seen = np.full(QUERIES, 0.5), np.arange(QUERIES) >= QUERIES // 4
    noise = np.random.default_rng(0).normal(0.0, 0.05, QUERIES)
    noise[~seen] -= noise[~seen].mean()
    after = before + np.where(seen, 0.3, -0.017) + noise
    report = judge(answers(before, seen), answers(after, seen), Gate(harm=0.05))
    unseen = report.slice("unseen")
    assert report.decision is not None
    assert unseen.deviation is not None
    of_slice = further_for_slice(-0.017, unseen.deviation, unseen.queries, SLICE_PRIOR, 0.02, 0.05)
    assert of_slice is not None
    assert report.decision.further_queries == pytest.approx(4 * of_slice, rel=0.05)


def test_too_few_queries_are_told_of_all_that_would_be_needed() -> None:
    """One more makes ten of nine, which a gain beside such noise does not settle."""
    before = np.full(9, 0.5)
    after = before + np.array([0.4, -0.3, 0.2, 0.3, -0.2, 0.1, -0.3, 0.2, 0.1])
    report = judge(answers(before), answers(after))
    assert report.verdict == "cannot tell"
    assert report.decision is not None
    whole = report.slice("all")
    assert whole.difference is not None
    assert whole.deviation is not None
    needed = further_for_significance(whole.difference.mean, whole.deviation, 9, 0.05)
    assert needed is not None
    assert report.decision.further_queries == needed > 9


def test_fewer_than_ten_queries_cannot_tell() -> None:
    before = np.full(9, 0.5)
    report = judge(answers(before), answers(before + 0.2))
    assert report.verdict == "cannot tell"
    assert report.reason == "9 held-out queries, too few to judge by; use 10"
    assert report.decision is not None
    assert "would settle it" in report.to_text()
    assert judge(answers(before), answers(before + 0.2), Gate(min_queries=9)).passed
    assert judge(None, None).verdict == "cannot tell"
    assert judge(None, None).to_dict()["decision"] is None


@pytest.mark.parametrize(("risk", "alpha", "harm"), [(name, *of) for name, of in RISKS.items()])
def test_a_risk_names_two_bounds(risk: str, alpha: float, harm: float) -> None:
    assert (Gate.of_risk(risk).alpha, Gate.of_risk(risk).harm) == (alpha, harm)
    assert Gate.of_risk(risk, alpha=0.3, margin=0.1) == Gate(0.3, 0.1, harm=harm, significant=True)
    generator = np.random.default_rng(5)
    before = generator.uniform(0, 1, QUERIES)
    noise = generator.normal(0, 0.2, QUERIES)
    after = before + noise - noise.mean() + 0.033
    report = judge(answers(before), answers(after), Gate(alpha=alpha, harm=0.5))
    assert report.p_value is not None
    assert 0.03 < report.p_value < 0.049
    assert report.passed == (risk != "cautious")


def test_scores_of_examples_are_judged_as_asked() -> None:
    scores = [0.1 * number for number in range(20)]
    job = SavingJob(before=scores, after=[1 + of for of in scores], risk="bold", alpha=0.125, margin=0.25)
    gate = Gate.of_risk(job.risk, alpha=job.alpha, margin=job.margin)
    assert gate == Gate(0.125, 0.25, harm=RISKS["bold"].harm, significant=True)
    report = judge_scores(job, gate)
    assert report.gate == gate
    assert [part.queries for part in report.slices] == [20, 0, 20]  # examples are of no document


def test_an_unknown_risk_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="risk='none'; use one of cautious, balanced, bold"):
        Gate.of_risk("none")


def test_three_lucky_queries_are_not_significant() -> None:
    """The bootstrap alone would say p = e⁻³ < .05: it never draws a loss where there is none."""
    before = np.full(QUERIES, 0.5)
    after = before.copy()
    after[[3, 40, 77]] += 0.3
    report = judge(answers(before), answers(after))
    whole = report.slice("all").difference
    assert whole is not None
    assert whole.p_one_sided < 0.05
    assert report.verdict == "refused"
    assert sign_flip_p_value(after - before) == pytest.approx(1 / 8, abs=0.01)
    assert sign_flip_p_value(np.zeros(5)) == 1.0
    assert sign_flip_p_value(np.ones(5)) == pytest.approx(1 / 32, abs=0.005)


def promoted(trials: int, difference: str) -> int:
    """How many null heads pass; each trial has its own corpus of clusters, queries, and head."""
    passed = 0
    for trial in range(trials):
        generator = torch.Generator().manual_seed(trial)
        corpus = torch.nn.functional.normalize(torch.randn(150, 16, generator=generator), dim=-1)
        wanted = torch.randint(150, (QUERIES,), generator=generator)
        states = torch.nn.functional.normalize(
            corpus[wanted] + 0.35 * torch.randn(QUERIES, 16, generator=generator), dim=-1
        )
        head = Head(16)
        scale = {"tiny": 0.004, "small": 0.02, "large": 0.1}[difference]
        with torch.no_grad():
            head.query_delta += scale * torch.randn(1, 16, 16, generator=generator)
            head.key_delta += scale * torch.randn(16, 16, generator=generator)
        relevant = [(np.array([at]), np.ones(1, np.float32)) for at in wanted.tolist()]

        def answered(by: Head) -> Answers:
            with torch.inference_mode():
                scores = by.fold(by.queries(states))[:, 0] @ corpus.T  # noqa: B023
            return answers(ndcg_at_10(scores.topk(10).indices.numpy(), relevant))  # noqa: B023

        passed += judge(answered(Head(16)), answered(head), samples=1000, seed=trial).passed
    return passed


@pytest.mark.parametrize("difference", ["tiny", "small", "large"])
def test_random_heads_pass_no_more_often_than_alpha_allows(difference: str) -> None:
    # 100 trials at alpha = .05: more than 11 have a probability below .005.
    assert promoted(100, difference) <= 11


def test_chance_differences_pass_no_more_often_than_alpha_allows() -> None:
    """Few or many queries change, each up or down alike."""
    generator = np.random.default_rng(0)
    before = np.full(QUERIES, 0.5)
    passed = 0
    for trial in range(300):
        moved = generator.random(QUERIES) < generator.choice([0.02, 0.04, 0.2, 1.0])
        change = np.where(moved, generator.normal(0, 0.02, QUERIES), 0.0)
        passed += judge(answers(before), answers(before + change), samples=1000, seed=trial).passed
    assert passed <= 25


def test_canaries(collection: Collection) -> None:
    same = Head(collection.store.dimension)
    assert overlap_of_canaries(collection.snapshot, same, same) == 1.0
    torch.manual_seed(0)
    other = Head(collection.store.dimension)
    with torch.no_grad():
        other.query_delta += 0.5 * torch.randn_like(other.query_delta)
    overlap = overlap_of_canaries(collection.snapshot, same, other)
    assert overlap is not None
    assert overlap < 0.95


def test_a_canary_is_not_its_own_neighbour(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: the nearest other of each document, by the embeddings and by moved queries."""
    monkeypatch.setattr("dsearch.training.gate.gate.DEPTH", 1)
    same, other = Head(32), Head(32)
    with torch.no_grad():
        other.query_delta += torch.randn(other.query_delta.shape, generator=torch.Generator().manual_seed(0))
    corpus = torch.as_tensor(collection.snapshot.embeddings(np.arange(16)))
    nearest = [
        (head.fold(head.queries(corpus))[:, 0] @ corpus.T).fill_diagonal_(-torch.inf).argmax(1).detach()
        for head in (same, other)
    ]
    kept = (nearest[0] == nearest[1]).float().mean().item()
    assert kept < 0.7
    assert overlap_of_canaries(collection.snapshot, same, other) == pytest.approx(kept)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "alpha=0.0"),
        ({"harm": 1.0}, "harm=1.0"),
        ({"margin": -1.0}, "margin=-1.0"),
        ({"min_queries": 0}, "min_queries=0"),
    ],
)
def test_bad_gates(options: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Gate(**options)  # type: ignore[arg-type]


def test_chance_is_never_ruled_out_by_a_sample() -> None:
    """Of the sampled patterns none is as high as 40 equal gains (probability 2^-40), and yet p is not 0."""
    assert sign_flip_p_value(np.ones(40), samples=999) == pytest.approx(1 / 1000)

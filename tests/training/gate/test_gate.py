"""The gate lets through what is better, and nothing by luck; it says when it cannot tell."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection
from dsearch.errors import InvalidRequest
from dsearch.training.gate.gate import Gate, judge, overlap_of_canaries, sign_flip_p_value
from dsearch.training.gate.held_out import Answers
from dsearch.training.ranking import ndcg_at_10

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
    for part in ("gate: passed", "p ≤ 0.05 (one-sided)", "more than 0.02", "50 queries", "seen", "keep 70%"):
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
    assert "on unseen documents nDCG@10 falls by 0.0210" in report.reason
    within = np.where(seen, 0.9, 0.5 - 0.019)
    assert judge(answers(before, seen), answers(within, seen)).passed
    assert judge(answers(before, seen), answers(after, seen), Gate(margin=0.03)).passed


def test_what_does_not_rise_is_refused() -> None:
    before = np.full(QUERIES, 0.5)
    assert "did not rise" in judge(answers(before), answers(before)).reason
    assert judge(answers(before), answers(before - 0.01)).verdict == "refused"
    noisy = before + np.random.default_rng(3).normal(0.01, 0.3, QUERIES)
    report = judge(answers(before), answers(noisy), Gate(margin=0.5))
    assert report.verdict == "refused"
    assert "not significant" in report.reason


def test_small_slices_cannot_be_judged() -> None:
    before = np.full(QUERIES, 0.5)
    seen = np.arange(QUERIES) < 49
    report = judge(answers(before, seen), answers(before + 0.2, seen))
    assert report.verdict == "cannot tell"
    assert "49 held-out queries (seen documents) are too few" in report.reason
    assert judge(answers(before, seen), answers(before + 0.2, seen), Gate(min_queries=49)).passed
    all_seen = np.ones(QUERIES, bool)
    assert judge(answers(before, all_seen), answers(before + 0.2, all_seen)).verdict == "cannot tell"
    # No two queries share a document: nothing can be seen, so unseen documents are all there is to judge by.
    none_seen = np.zeros(QUERIES, bool)
    assert judge(answers(before, none_seen), answers(before + 0.2, none_seen)).passed
    assert judge(None, None).verdict == "cannot tell"


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


@pytest.mark.parametrize(
    ("options", "message"),
    [({"alpha": 0.0}, "alpha=0.0"), ({"margin": -1.0}, "margin=-1.0"), ({"min_queries": 0}, "min_queries=0")],
)
def test_bad_gates(options: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Gate(**options)  # type: ignore[arg-type]


def test_the_p_value_may_be_alpha_and_no_more() -> None:
    generator = np.random.default_rng(5)
    before = generator.uniform(0, 1, QUERIES)
    after = before + generator.normal(0.03, 0.2, QUERIES)
    seen = np.arange(QUERIES) % 2 == 0
    p_value = judge(answers(before, seen), answers(after, seen), Gate(alpha=0.99, margin=0.5)).p_value
    assert p_value is not None
    assert 0.001 < p_value < 0.5
    for alpha, verdict in ((p_value, "passed"), (0.99 * p_value, "refused")):
        report = judge(answers(before, seen), answers(after, seen), Gate(alpha=alpha, margin=0.5))
        assert report.verdict == verdict, report.reason


def test_chance_is_never_ruled_out_by_a_sample() -> None:
    """Of the sampled patterns none is as high as 40 equal gains (probability 2^-40), and yet p is not 0."""
    assert sign_flip_p_value(np.ones(40), samples=999) == pytest.approx(1 / 1000)


def test_a_fall_on_too_few_documents_is_no_reason_to_refuse() -> None:
    before = np.full(QUERIES, 0.5)
    seen = np.arange(QUERIES) < QUERIES - 10
    after = np.where(seen, 0.9, 0.1)
    report = judge(answers(before, seen), answers(after, seen))
    assert report.verdict == "cannot tell"
    assert "10 held-out queries (unseen documents)" in report.reason

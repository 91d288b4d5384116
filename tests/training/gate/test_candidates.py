"""Training starts from the tuned search, a candidate of its own; nothing held out has a part in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from jaxtyping import Float

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.hops import refine
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.models.confidence import RECORDED
from dsearch.training import (
    Examples,
    Gate,
    Observer,
    TrainingOptions,
    TrainingResult,
    examples_from_judgements,
    finetune,
    register,
)
from dsearch.training.gate.gate import GateReport, Verdict, judge, preferred
from dsearch.training.gate.held_out import Answers, Headroom
from dsearch.training.gate.selection import (
    CheckpointChoice,
    FoldAnswers,
    ServingChoice,
    chosen,
    kept_hop,
    kept_served,
    part_of_the_way,
)
from dsearch.training.ranking import Ranking
from dsearch.training.tune import DEFAULT, Trials, TunedSearch, setting_of
from dsearch.types import Document

COUNT = 80


@pytest.fixture
def words(engine: SearchEngine) -> Collection:
    collection = engine.create("words")
    collection.ingest([Document(id=f"d{i}", text=f"word{i} common{i % 7}") for i in range(COUNT)])
    return collection


@pytest.fixture
def misled(words: Collection) -> Examples:
    """The states point at the wrong documents, the words at the right ones."""
    queries = {f"q{i:03}": f"word{i}" for i in range(COUNT)}
    examples = examples_from_judgements(words, queries, {f"q{i:03}": {f"d{i}": 1.0} for i in range(COUNT)})
    states = np.roll(words.snapshot.embeddings(np.arange(COUNT)), 7, axis=0)
    return replace(examples, states=states)


def answers(values: Float[np.ndarray, " queries"]) -> Answers:
    return Answers(values, np.zeros(len(values), bool), values)


IDLE = TrainingOptions(epochs=1, learning_rate=1e-7, retention=0.0)


def test_the_tuned_search_may_answer_where_the_head_may_not(words: Collection, misled: Examples) -> None:
    """A head that learns nothing does not gain on the tuned search; that one gains on what answers now."""
    trained = finetune(misled, IDLE)
    assert not trained.gate.passed
    assert trained.tuned is not None
    assert trained.tuned.passed
    assert trained.goes_live == "tuned"
    assert trained.learned_from is not None
    assert trained.learned_from.texts == misled.texts
    weight = setting_of(trained.head)[0] / trained.keyword_factor
    assert weight == pytest.approx(trained.tuned.setting[0], abs=1e-3)
    made = register(words, trained)
    assert (made.version, made.live, words.live_model) == ("v1", "v2", "v2")
    assert setting_of(words.head("v2")) == trained.tuned.setting
    assert words.store.model("v2").record["scope"] == "tune"
    assert "the tuned search does" in made.reason


@pytest.mark.parametrize(("promote", "accept", "live"), [(False, False, None), (True, True, "v1")])
def test_nothing_is_promoted_unasked(
    words: Collection, misled: Examples, promote: bool, accept: bool, live: str | None
) -> None:
    trained = finetune(misled, IDLE)
    made = register(words, replace(trained, tuned=None), promote=promote, accept=accept)
    assert (made.live, words.live_model) == (live, live or "v0")
    assert len(words.store.models()) == 1


def test_without_tuning_training_starts_from_what_answers(misled: Examples) -> None:
    trained = finetune(misled, replace(IDLE, tune=False))
    assert trained.tuned is None
    assert trained.record["tuned"] is None
    assert setting_of(trained.head)[0] == pytest.approx(DEFAULT[0], abs=1e-3)


def test_held_out_queries_have_no_part_in_tuning(misled: Examples) -> None:
    """Whatever the held-out half wants, the setting for its fold is that of the other half alone."""
    half = list(range(COUNT // 2))
    other = sorted(set(range(COUNT)) - set(half))
    words_help = Trials.of(misled).precisions
    # In the first half dense search answers and words mislead; in the second it is the other way round.
    flipped = {
        setting: np.concatenate([1 - of[: COUNT // 2], of[COUNT // 2 :]])
        for setting, of in words_help.items()
    }
    trials = replace(Trials.of(misled), values=flipped, precisions=flipped)
    assert trials.choose(without=half).setting[0] > 1
    assert trials.choose(without=other).setting != trials.choose(without=half).setting
    # Changing nothing but values of held-out queries changes nothing of the choice.
    worse = {
        setting: np.concatenate([of[: COUNT // 2] * 0 + setting[0], of[COUNT // 2 :]])
        for setting, of in flipped.items()
    }
    without = replace(trials, values=worse, precisions=worse).choose(without=half)
    assert without.setting == trials.choose(without=half).setting
    assert np.array_equal(without.crossed.all, trials.choose(without=half).crossed.all)


def compared(now: np.ndarray, tuned: np.ndarray, head: np.ndarray) -> tuple[GateReport, GateReport]:
    gate = Gate(alpha=0.05)
    reports = [judge(answers(now), answers(of), gate) for of in (tuned, head)]
    return preferred(*reports, answers(tuned), answers(head))


def test_where_both_pass_the_tuned_search_must_be_clearly_better() -> None:
    now = np.random.default_rng(0).uniform(0.3, 0.6, 400)
    noise = np.random.default_rng(1).normal(0, 0.2, 400)  # with a standard error of .01
    noise -= noise.mean()
    of_tuned, of_head = compared(now, now + 0.1, now + 0.08 + noise)
    assert (of_tuned.passed, of_head.verdict) == (True, "cannot tell")
    assert "-0.0200" in of_head.reason
    of_tuned, of_head = compared(now, now + 0.1, now + 0.095 + noise)
    assert (of_tuned.passed, of_head.passed) == (True, True)
    of_tuned, of_head = compared(now, now + 0.1, now + 0.1)
    assert (of_tuned.passed, of_head.passed) == (True, False)
    of_tuned, of_head = compared(now, now - 0.02, now + 0.01)
    assert (of_tuned.passed, of_head.passed) == (False, True)


@pytest.mark.parametrize(("claimed", "alphas"), [("judgements", (0.05, 0.05)), ("documents", (0.04, 0.01))])
def test_candidates_that_must_be_significant_share_alpha(
    misled: Examples, claimed: str, alphas: tuple[float, float]
) -> None:
    trained = finetune(replace(misled, source=claimed), IDLE)
    assert trained.tuned is not None
    assert (trained.tuned.gate.gate.alpha, trained.gate.gate.alpha) == pytest.approx(alphas)
    assert (trained.gate.noise is None) == (claimed == "documents")


@pytest.mark.parametrize(
    ("head", "tuned", "live"),
    [("passed", "passed", "head"), ("refused", "passed", "tuned"), ("refused", "refused", None)],
)
def test_what_was_refused_does_not_go_live(head: Verdict, tuned: Verdict, live: str | None) -> None:
    of_head, of_tuned = (replace(judge(None, None), verdict=verdict) for verdict in (head, tuned))
    record = {RECORDED: {"floor": 0.0}}
    about = {"record": {**record, "gate": of_tuned.to_dict()}, "gate": of_tuned}
    searched = TunedSearch(head=Head(8), setting=DEFAULT, scores={}, **about)
    room = Headroom(1, 1, 0.5, 0.5, 0.5)
    about = {"record": {**record, "gate": of_head.to_dict()}, "gate": of_head}
    trained = TrainingResult(head=Head(8), epochs=1, headroom=room, tuned=searched, **about)
    assert trained.goes_live == live


def test_the_hop_strength_is_chosen_after_training() -> None:
    """By held-out answers of the last checkpoint; one that adds less than its standard error is not."""
    generator = np.random.default_rng(1)
    plain = generator.uniform(0.2, 0.8, 100)
    seen = np.zeros(100, bool)
    noise = generator.normal(0, 0.1, 100)
    noise -= noise.mean()
    assert kept_hop({0.0: plain, 1.0: plain + 0.05 + noise, 2.0: plain - 0.1}, seen) == 1.0
    assert kept_hop({0.0: plain, 1.0: plain + 0.001 + noise, 2.0: plain - 0.1}, seen) == 0.0
    served = {ServingChoice(1.0, 0.0): answers(plain), ServingChoice(1.0, 1.0): answers(plain + 0.1)}
    last = FoldAnswers(answers(plain), answers(plain), [answers(plain), answers(plain)], served)
    assert (chosen([last]).checkpoint, chosen([last]).served) == (2, ServingChoice(1.0, 1.0))
    assert last.of(chosen([last])) is served[ServingChoice(1.0, 1.0)]
    early = FoldAnswers(answers(plain), answers(plain + 0.3), [answers(plain), answers(plain)], served)
    assert (chosen([early]).checkpoint, chosen([early]).served) == (0, None)


def test_a_head_is_served_with_as_much_as_unseen_documents_bear() -> None:
    """What they lose counts thrice: a small loss costs no large gain, and a large one is not bought."""
    plain = np.random.default_rng(2).uniform(0.2, 0.8, 100)
    now, whole, half = answers(plain), ServingChoice(1.0, 0.0), ServingChoice(0.5, 0.0)
    weighed = ServingChoice(1.0, 0.0, 1.6)

    def moved(every: float, unseen: float) -> Answers:
        return Answers(plain + every, np.zeros(100, bool), plain + unseen)

    assert kept_served({whole: moved(0.1, -0.06), half: moved(0.05, -0.01)}, now) == half
    assert kept_served({whole: moved(0.1, -0.02), half: moved(0.05, 0.0)}, now) == whole
    assert kept_served({whole: moved(0.1, -0.02), weighed: moved(0.09, 0.01)}, now) == weighed
    assert kept_served({half: moved(0.05, 0.05), whole: moved(0.06, 0.0)}, now) == whole
    alike = {of: moved(0.0, 0.0) for of in (half, weighed, whole)}
    assert kept_served(alike, now) == whole
    few = {whole: moved(0.1, -0.9), weighed: moved(0.2, 0.0), half: moved(0.1, 0.0)}
    few = {of: found.subset(np.arange(10)) for of, found in few.items()}
    assert kept_served(few, now.subset(np.arange(10))) == whole


def test_losses_on_unseen_documents_count_where_some_queries_have_none() -> None:
    plain, unseen = np.full(100, 0.5), np.full(100, 0.5)
    unseen[0] = np.nan
    whole, half = ServingChoice(1.0, 0.0), ServingChoice(0.5, 0.0)
    now = replace(answers(plain), unseen=unseen)
    lost = replace(now, all=plain + 0.1, unseen=unseen - 0.06)
    kept = replace(now, all=plain + 0.05, unseen=unseen - 0.01)
    assert kept_served({whole: lost, half: kept}, now) == half


@pytest.mark.parametrize("heads", [1, 2])
def test_part_of_the_way_is_between_both_ends(heads: int) -> None:
    before, trained = Head(8, heads=heads, seed=0), Head(8, heads=heads, seed=0)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    assert part_of_the_way(before, trained, 1.0) is trained
    states = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    assert torch.equal(part_of_the_way(before, trained, 0.0).queries(states), before.queries(states))
    half = part_of_the_way(before, trained, 0.5)
    for name, parameter in half.named_parameters():
        ends = before.get_parameter(name), trained.get_parameter(name)
        torch.testing.assert_close(parameter, (ends[0] + ends[1]) / 2)


def test_the_trained_head_is_served_with_the_hop_that_was_chosen(
    misled: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dsearch.training.gate.selection.chosen",
        lambda folds: CheckpointChoice(len(folds[0].after), ServingChoice(0.5, 2.0, 1.6)),
    )
    trained = finetune(misled, IDLE)
    assert trained.keyword_factor == trained.record["keyword_factor"] == 1.6
    assert trained.head.hop_strength.item() == 2.0
    assert (trained.record["hop_strength"], trained.record["share"], trained.share) == (2.0, 0.5, 0.5)


def test_the_head_that_goes_live_is_of_the_checkpoint_that_was_chosen(
    misled: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsearch.training.gate.selection.chosen", lambda folds: CheckpointChoice(1))
    stages: list[str] = []
    observer = Observer()
    monkeypatch.setattr(observer, "epoch", lambda stage, epoch: stages.append(stage))
    trained = finetune(misled, replace(IDLE, epochs=2, tune=False), observer=observer)
    assert trained.epochs == stages.count("train") == 1


@pytest.mark.parametrize(("heads", "excited"), [(1, False), (3, False), (3, True)])
def test_hops_of_any_strength_are_those_of_refine(misled: Examples, heads: int, excited: bool) -> None:
    """One product with the corpus for all strengths; against the turned queries scored one by one."""
    head = Head(misled.states.shape[1], heads=heads, seed=0)
    with torch.no_grad():
        if excited:
            generator = torch.Generator().manual_seed(3)
            head.open_excitation().excite += torch.randn(heads, 16, generator=generator)
        for name, parameter in head.named_parameters():
            if name in ("query_delta", "query_in", "query_out", "key_delta"):
                parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    strengths = [0.0, 0.3, 1.0, 4.0]
    tops = Ranking(misled, keywords=False).tops_of_alike([head], strengths, 5)[0]
    corpus = torch.as_tensor(misled.snapshot.embeddings(np.arange(COUNT)))
    with torch.inference_mode():
        queries = head.queries(torch.as_tensor(misled.states))

        def mixed(queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            logits = head.fold(queries) @ corpus.T / head.temperature
            shares = head.mixture_of(head.fold(queries)).log()[..., None]
            return logits, (shares + logits.log_softmax(-1)).logsumexp(1)

        logits, first = mixed(queries)
        found = first.topk(10, dim=1).indices
        weights = logits.gather(2, found[:, None].expand(-1, heads, -1)).softmax(-1)
        for strength, top in zip(strengths, tops, strict=True):
            _, expected = mixed(refine(queries, weights, head.keys(corpus[found]), strength))
            assert (torch.as_tensor(top) == expected.topk(5, dim=1).indices).float().mean() > 0.99

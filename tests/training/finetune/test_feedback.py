"""Learning from feedback: what is learned, who judges it, and that poison does not get through."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.store import Event, Impression
from dsearch.training import (
    ClickOptions,
    Examples,
    Gate,
    TrainingOptions,
    examples_from_feedback,
    examples_from_judgements,
    finetune_from_feedback,
    train_head,
)
from dsearch.training.data.clicks import even_propensities
from dsearch.training.finetune.feedback import TrustedSlice, judged_by_trusted
from dsearch.training.head_task import _Batches
from dsearch.training.losses.objectives import OBJECTIVES
from dsearch.training.ranking import Ranking
from dsearch.types import Document

COUNT = 60
QUERIES = [f"question{i % 20} colour{i % 3} asked{i}" for i in range(COUNT)]
FAST = TrainingOptions(epochs=12, learning_rate=1e-2, retention=0.1)


@pytest.fixture
def synonyms(engine: SearchEngine) -> Collection:
    """Documents that share no word with the queries that they answer."""
    collection = engine.create("synonyms")
    collection.ingest(
        [Document(id=f"d{i}", text=f"answer{i % 20} tint{i % 3} filler{i}") for i in range(COUNT)]
    )
    return collection


def clicked(collection: Collection, key: str, answers: list[int], *, action: str = "click") -> None:
    """A key does something with document answers[i] for query i, on a page that had it before ten others."""
    impressions, events = [], []
    for i, answer in enumerate(answers):
        name = f"{key}-{action}-{i}"
        ids = dict.fromkeys([f"d{answer}", *(f"d{(answer + 5 * k) % COUNT}" for k in range(10))])
        impressions.append(Impression(name, QUERIES[i], 0.0, ids=tuple(ids)))
        events.append(Event(name, name, key, "", action, f"d{answer}", 1, 0.0, 0.0))
    collection.feedback.record(impressions, events)


def test_examples_are_graded_and_weighted(synonyms: Collection) -> None:
    clicked(synonyms, "a", list(range(COUNT)))
    clicked(synonyms, "b", list(range(30)))
    clicked(synonyms, "c", [COUNT - 1, *range(1, 30)])
    source = examples_from_feedback(synonyms, propensities=even_propensities())
    examples = source.examples
    assert examples.weights is not None
    assert examples.weights.mean() == pytest.approx(1.0)
    weight = dict(zip(examples.texts, examples.weights.tolist(), strict=True))
    assert weight[QUERIES[5]] > weight[QUERIES[45]]  # three clicks, one
    grades = dict(zip(examples.texts, examples.relevant, strict=True))
    positions, graded = grades[QUERIES[0]]
    assert sorted(graded.tolist()) == [0.5, 1.0]
    assert len(positions) == 2
    assert source.to_dict()["clicks"] == 120
    assert "120 clicks of 3 keys" in source.to_text()
    assert examples_from_feedback(synonyms).propensities.source == "assumed"
    naive = examples_from_feedback(synonyms, correct=False)
    assert (naive.propensities.source, naive.examples.digest) == ("none", examples.digest)
    other = examples_from_feedback(synonyms, propensities=even_propensities(), only={"a"}).examples
    assert other.digest != examples.digest
    assert (examples.source, other.source) == ("clicks", "clicks")


@pytest.mark.parametrize(("clickers", "thumbs"), [(1, 2), (1, 5), (2, 3), (2, 25)])
@pytest.mark.parametrize("thumb", ["thumbs_up", "thumbs_down"])
def test_visitors_who_only_gave_thumbs_may_outnumber_those_who_clicked(
    synonyms: Collection, clickers: int, thumbs: int, thumb: str
) -> None:
    for number in range(clickers):
        clicked(synonyms, f"clicks{number}", list(range(10)))
    for number in range(thumbs):
        clicked(synonyms, f"thumbs{number}", list(range(20, 30)), action=thumb)
    source = examples_from_feedback(synonyms)
    assert source.graded.keys == clickers + thumbs
    for number, text in enumerate(QUERIES[:10]):
        liked = {f"d{20 + number}": 2.0} if thumb == "thumbs_up" else {}
        assert source.graded.grades[text] == {f"d{number}": 1.0} | liked
    assert np.isfinite(source.examples.weights).all()
    assert (source.examples.weights > 0).all()


def test_weights_and_what_was_left_are_part_of_the_digest(synonyms: Collection) -> None:
    def digest() -> str:
        return examples_from_feedback(synonyms, propensities=even_propensities()).examples.digest

    clicked(synonyms, "a", list(range(10)))
    before = digest()
    clicked(synonyms, "b", list(range(5)))  # the same documents: other weights alone
    weighed = digest()
    clicked(synonyms, "c", [5], action="read")
    assert len({before, weighed, digest()}) == 3


def test_what_was_left_is_part_of_the_digest_by_itself(engine: SearchEngine) -> None:
    """The same reading on two pages, which showed another document beside it."""
    digests: list[str] = []
    for other in ("d1", "d2"):
        collection = engine.create(f"beside-{other}")
        collection.ingest([Document(f"d{n}", f"word{n}") for n in range(3)])
        page = Impression("q", "words", 0.0, ids=("d0", other))
        collection.feedback.record([page], [Event("e", "q", "agent", "", "read", "d0", 1, 0.0, 0.0)])
        digests.append(examples_from_feedback(collection, propensities=even_propensities()).examples.digest)
    assert digests[0] != digests[1]


def test_the_share_of_a_key_bounds_what_it_says_of_positions(synonyms: Collection) -> None:
    """One key clicks all that a coin put second; ten others click what it put first."""
    keys = [*[f"k{n % 10}" for n in range(60)], *["liar"] * 200]
    pages = [Impression(f"p{n}", QUERIES[0], 0.0, ids=("d0", "d1"), pair=(1, 2)) for n in range(len(keys))]
    clicks = [
        Event(page.query_id, page.query_id, key, "", "click", f"d{at}", at + 1, 0.0, 0.0)
        for page, key, at in zip(pages, keys, [int(key == "liar") for key in keys], strict=True)
    ]
    synonyms.feedback.record(pages, clicks)
    second = [
        examples_from_feedback(synonyms, options=ClickOptions(key_share=share)).propensities.values[1]
        for share in (0.1, 1.0)
    ]
    assert second[1] > 2 * second[0]


def test_what_agents_saw_and_left_is_in_the_softmax(synonyms: Collection) -> None:
    """A page of answer i shows documents i, i + 5, …: the first is read, the others are left."""
    answers = list(range(10, 20))
    clicked(synonyms, "agent", answers, action="read")
    examples = examples_from_feedback(synonyms, propensities=even_propensities()).examples
    assert examples.negatives is not None
    left = {f"d{(i + 5 * k) % COUNT}" for i in answers for k in range(1, 10)}
    assert "d0" in left  # at the first position of all
    assert set(synonyms.ids_at(examples.snapshot, examples.negatives[None])[0]) == left
    corpus, which = torch.zeros(COUNT, examples.states.shape[1]), torch.arange(len(examples))
    batch = _Batches(examples, "cpu").of(Head(examples.states.shape[1]), corpus, which, None)
    relevant = {int(at) for positions, _ in examples.relevant for at in positions}
    assert set(batch.judged.tolist()) == relevant | set(examples.negatives.tolist())
    assert examples.subset([0]).negatives is examples.negatives

    clicked(synonyms, "user", answers)
    alone = examples_from_feedback(synonyms, propensities=even_propensities(), only={"user"}).examples
    assert alone.negatives is None  # a click says nothing of the rest of its page


def test_keys_can_be_named_and_left_out(synonyms: Collection) -> None:
    clicked(synonyms, "a", list(range(10)))
    clicked(synonyms, "b", list(range(20)))
    assert len(examples_from_feedback(synonyms, without={"b"}).examples) == 10
    assert len(examples_from_feedback(synonyms, only={"b"}).examples) == 20
    with pytest.raises(InvalidRequest, match="no feedback of 'synonyms' by nobody, who; name keys that sent"):
        examples_from_feedback(synonyms, only={"who", "nobody"})
    with pytest.raises(InvalidRequest) as refused:
        examples_from_feedback(synonyms, without={"a", "b"})
    assert "no feedback of 'synonyms' to learn from beside that of a, b, which is trusted" in str(
        refused.value
    )
    assert str(refused.value).endswith("with: dsearch judgements export FILE -c synonyms")


def test_a_query_of_weight_two_counts_twice(synonyms: Collection) -> None:
    clicked(synonyms, "a", [3, 8])
    examples = examples_from_feedback(synonyms).examples
    corpus = torch.as_tensor(np.array(synonyms.snapshot.generation.embeddings))

    def loss(objective: str, weights: list[float] | None, which: list[int]) -> float:
        array = None if weights is None else np.array(weights, np.float32)
        made = Examples(*(getattr(examples, name) for name in Examples.__slots__[:7]), weights=array)
        batch = _Batches(made, "cpu").of(Head(32), corpus, torch.tensor(which), None)
        return OBJECTIVES[objective](batch).item()

    for objective in ("listwise", "judged"):
        assert loss(objective, [2.0, 0.0], [0, 1]) == pytest.approx(loss(objective, None, [0]), rel=1e-5)
        assert loss(objective, [1.0, 1.0], [0, 1]) == pytest.approx(loss(objective, None, [0, 1]), rel=1e-6)


def test_what_helps_the_trusted_passes_and_more_of_the_same_does_not(synonyms: Collection) -> None:
    for key in ("a", "b", "trusted"):
        clicked(synonyms, key, list(range(COUNT)))
    source = examples_from_feedback(synonyms, without={"trusted"})
    trusted = examples_from_feedback(synonyms, only={"trusted"})
    trained = finetune_from_feedback(source, trusted, FAST)
    assert trained.gate.passed, trained.gate.reason
    assert trained.record["trusted_queries"] == COUNT
    assert trained.record["feedback"]["propensities"]["source"] == "assumed"
    assert trained.gate.canary_overlap is not None
    assert trained.record["options"]["tune"] is False  # clicks choose no keyword weight
    again = finetune_from_feedback(source, trusted, FAST, live=trained.head)
    assert not again.gate.passed  # it is no better than what answers now


def test_what_was_shown_is_judged_however_far_down_a_head_has_it(synonyms: Collection) -> None:
    """Of sixty documents two were shown, which this head has in places beyond the first ten."""
    examples = examples_from_judgements(synonyms, {"q": QUERIES[7]}, {"q": {"d0": 1.0}})
    order = synonyms.ids_at(examples.snapshot, Ranking(examples).top(Head(32), COUNT))[0]
    page = Impression("p", QUERIES[7], 0.0, ids=(order[40], order[30]))
    synonyms.feedback.record([page], [Event("e", "p", "k", "", "click", order[40], 1, 0.0, 0.0)])
    trusted = examples_from_feedback(synonyms)
    answers = TrustedSlice.of(examples, trusted, TrainingOptions()).answers([Head(32)])
    assert answers[0].all.tolist() == pytest.approx([1 / np.log2(3)])  # behind the other one


def test_a_query_is_seen_that_others_asked_in_other_letters(synonyms: Collection) -> None:
    learned = examples_from_judgements(synonyms, {"q": "Some  Words"}, {"q": {"d0": 1.0}})
    texts = {"a": "some WORDS", "b": "some other words"}
    trusted = examples_from_judgements(synonyms, texts, {"a": {"d1": 1.0}, "b": {"d1": 1.0}})
    seen = TrustedSlice.of(learned, trusted, TrainingOptions()).seen
    assert dict(zip(trusted.texts, seen.tolist(), strict=True)) == {
        "some WORDS": True,
        "some other words": False,
    }


def test_trusted_queries_are_ranked_with_keywords_only_where_the_head_is(engine: SearchEngine) -> None:
    collection = engine.create("words")
    collection.ingest([Document(f"d{n}", f"word{n} other{n}") for n in range(40)])
    asked = examples_from_judgements(collection, {"q": "word3"}, {"q": {"d3": 1.0}})
    examples = replace(asked, states=-asked.states)  # it means the opposite
    head = Head(32)
    with torch.no_grad():
        head.keyword_weight.fill_(10.0)
    found = [
        TrustedSlice.of(examples, examples, TrainingOptions(keywords=keywords)).answers([head])[0].all
        for keywords in (True, False)
    ]
    assert [values.tolist() for values in found] == [[1.0], [0.0]]


def test_without_a_trusted_slice_it_says_that_it_cannot_tell(synonyms: Collection) -> None:
    clicked(synonyms, "a", list(range(COUNT)))
    trained = finetune_from_feedback(examples_from_feedback(synonyms), None, FAST)
    assert (trained.gate.verdict, trained.gate.passed) == ("cannot tell", False)
    assert "anybody can poison" in trained.gate.reason


def test_few_trusted_queries_are_too_few(synonyms: Collection) -> None:
    clicked(synonyms, "a", list(range(COUNT)))
    clicked(synonyms, "trusted", list(range(9)))
    source = examples_from_feedback(synonyms, without={"trusted"})
    trusted = examples_from_feedback(synonyms, only={"trusted"})
    assert finetune_from_feedback(source, trusted, FAST).gate.verdict == "cannot tell"
    assert finetune_from_feedback(source, trusted, FAST, gate=Gate(min_queries=9)).gate.passed


@pytest.mark.parametrize("poison", ["random", "one document", "shifted", "thumbs"])
def test_poison_never_passes_a_trusted_slice(engine: SearchEngine, poison: str) -> None:
    """All keys but the trusted lie; whatever they agree on, the trusted slice does not rise."""
    draw = np.random.default_rng(0)
    for trial in range(4):
        collection = engine.create(f"c{trial}")
        # A search that works: documents share words with their queries.
        collection.ingest(
            [Document(id=f"d{i}", text=f"question{i % 20} colour{i % 3} filler{i}") for i in range(COUNT)]
        )
        shift = int(draw.integers(1, COUNT))
        answers = {
            "random": draw.integers(COUNT, size=COUNT).tolist(),
            "one document": [shift] * COUNT,
            "shifted": [(i + shift) % COUNT for i in range(COUNT)],
            "thumbs": [(i + shift) % COUNT for i in range(COUNT)],
        }[poison]
        for key in ("a", "b", "c"):
            clicked(collection, key, answers, action="thumbs_up" if poison == "thumbs" else "click")
        clicked(collection, "trusted", list(range(COUNT)))
        source = examples_from_feedback(collection, without={"trusted"})
        trusted = examples_from_feedback(collection, only={"trusted"})
        options = TrainingOptions(epochs=8, learning_rate=1e-2, retention=0.1, seed=trial)
        trained = finetune_from_feedback(source, trusted, options)
        assert not trained.gate.passed, (trial, trained.gate.reason)


def test_random_heads_pass_no_more_often_than_alpha_allows(synonyms: Collection) -> None:
    clicked(synonyms, "a", list(range(COUNT)))
    clicked(synonyms, "trusted", list(range(COUNT)))
    examples = examples_from_feedback(synonyms, only={"a"}).examples
    trusted = examples_from_feedback(synonyms, only={"trusted"})
    passed = 0
    for seed in range(60):
        torch.manual_seed(seed)
        head = Head(32).eval()
        with torch.no_grad():
            head.query_delta += 0.05 * torch.randn_like(head.query_delta)
        passed += judged_by_trusted(examples, trusted, Head(32).eval(), head).passed
    assert passed <= 7  # 60 trials at .05: 8 or more have a chance below 2 %


def test_one_adversary_among_many_moves_nothing(synonyms: Collection) -> None:
    """One key of 31 with 1 % of the clicks: the grades are the same, so is the head."""
    for n in range(30):
        clicked(synonyms, f"k{n}", list(range(COUNT)))
    honest = examples_from_feedback(synonyms)
    for name in range(18):  # of 1,818 clicks
        number = f"x{name}"
        impression = Impression(number, QUERIES[name], 0.0, ids=tuple(f"d{i}" for i in range(30, 60)))
        event = Event(number, number, "liar", "", "click", "d59", 30, 0.0, 0.0)
        synonyms.feedback.record([impression], [event])
    attacked = examples_from_feedback(synonyms)
    assert attacked.graded.keys == 31
    assert attacked.graded.grades == honest.graded.grades
    one, other = (train_head(source.examples, FAST) for source in (honest, attacked))
    assert torch.equal(one.query_delta, other.query_delta)
    open_door = examples_from_feedback(synonyms, options=ClickOptions(quorum=1, key_share=1.0))
    assert open_door.graded.grades != honest.graded.grades


def test_a_document_that_the_trusted_never_saw_cannot_hide_above_the_others(engine: SearchEngine) -> None:
    """Good clicks teach the order of what was shown; with them comes one document above everything."""
    collection = engine.create("lifted")
    collection.ingest([Document(id=f"d{i}", text=f"question{i % 20} filler{i}") for i in range(COUNT)])
    collection.upsert([Document(id="lifted", text="buy this now")])
    for key in ("a", "b", "trusted"):
        clicked(collection, key, list(range(COUNT)))
    for i, query in enumerate(QUERIES):
        event = Event(f"x{i}", f"x{i}", "liar", "", "thumbs_up", "lifted", 1, 0.0, 0.0)
        collection.feedback.record([Impression(f"x{i}", query, 0.0, ids=("lifted",))], [event])
    trusted = examples_from_feedback(collection, only={"trusted"})
    options = TrainingOptions(epochs=40, learning_rate=1e-2, retention=0.1)
    honest = finetune_from_feedback(examples_from_feedback(collection, only={"a", "b"}), trusted, options)
    assert honest.gate.passed, honest.gate.reason
    lifted = finetune_from_feedback(examples_from_feedback(collection, without={"trusted"}), trusted, options)
    whole = lifted.gate.slice("all")
    assert whole.before is not None
    assert whole.after is not None
    assert whole.after > whole.before + 0.05  # the order of what was shown has become better
    assert lifted.gate.verdict == "refused"
    assert "documents that were never shown" in lifted.gate.reason

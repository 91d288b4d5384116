"""Draws of documents and their rewards: probabilities and gradients in closed form, limits, and learning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.memory import QueryMemory
from dsearch.engine import Collection, GradientQuery, SearchEngine, attention_parts
from dsearch.engine.draws import draw, reward
from dsearch.engine.models import drafts as bounds
from dsearch.engine.models.drafts import Draws
from dsearch.engine.models.tensors import head_tensors
from dsearch.errors import Conflict, Gone, InvalidRequest
from dsearch.types import Document

TEXTS = ["apple bread", "bread oven", "cheese milk", "dough flour", "egg milk", "flour bread"]
QUERIES = ["bread", "milk egg"]
T = 0.3


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    with SearchEngine(tmp_path_factory.mktemp("draws") / "home", encoder=HashingEncoder) as engine:
        collection = engine.create("shop")
        collection.ingest([Document(f"p{n}", text) for n, text in enumerate(TEXTS)])
        yield collection


def question(**changes: object) -> GradientQuery:
    asked: dict[str, Any] = {"owner": "me", "options": {"mode": "dense", "temperature": T}, **changes}
    return GradientQuery(texts=QUERIES, **asked)


def shares() -> np.ndarray:
    """softmax of the cosines at temperature T."""
    keys = HashingEncoder().encode_documents(TEXTS).astype(float)
    logits = HashingEncoder().encode_queries(QUERIES).astype(float) @ keys.T / T
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def test_documents_are_drawn_with_their_weights(shop: Collection) -> None:
    weights = shares()
    counts = np.zeros((2, len(TEXTS)))
    for seed in range(60):
        result = draw(shop, question(), 64, seed)
        for query, row in enumerate(result.results):
            assert len(row.ids) == len(row.positions) == len(row.log_probabilities) == 64
            of_rows = [int(id[1:]) for id in row.ids]
            assert row.log_probabilities == pytest.approx(np.log(weights[query, of_rows]), abs=1e-4)
            assert shop.ids_at(shop.snapshot, np.array([row.positions])) == [row.ids]
            np.add.at(counts[query], of_rows, 1)
    assert np.abs(counts / counts.sum(1, keepdims=True) - weights).max() < 0.04  # 5 standard errors
    one = draw(shop, GradientQuery(texts=QUERIES[:1]), 2, 5).results
    assert len(one) == 1
    assert draw(shop, question(), 64, 5).results == draw(shop, question(), 64, 5).results


def test_the_gradient_is_that_of_reinforce_in_closed_form(shop: Collection) -> None:
    """∂ log p(a) / ∂ q = (k_a − Σ p k) / T, each times its reward less the mean of the others'."""
    keys = HashingEncoder().encode_documents(TEXTS).astype(float)
    weights, generator = shares(), np.random.default_rng(3)
    result = draw(shop, question(dtype="float64"), 8, 1)
    rewards = generator.normal(size=(2, 8))
    answer = reward(shop, result.draw, rewards.tolist(), owner="me", gradients=True)
    assert answer.draft is None
    assert answer.mean_reward == pytest.approx(rewards.mean())
    expected = np.zeros((2, keys.shape[1]))
    for query, row in enumerate(result.results):
        for at, id in enumerate(row.ids):
            baseline = (rewards[query].sum() - rewards[query, at]) / 7
            slope = (keys[int(id[1:])] - weights[query] @ keys) / T
            expected[query] -= (rewards[query, at] - baseline) * slope / 8 / 2
    assert answer.states is not None
    assert answer.states == pytest.approx(expected, abs=1e-6)
    assert answer.head is not None
    assert np.abs(answer.head["key_delta"]).max() > 0


def test_a_head_learns_from_rewards_alone_and_no_version_is_made(shop: Collection) -> None:
    """The third document is worth something for the first query, the first one for the second."""
    wanted, draft, means = ("p2", "p0"), None, list[float]()
    for step in range(12):
        result = draw(shop, question(draft=draft), 16, step)
        assert (result.draft, result.stamp.model) == (draft, "v0")
        rewards = [[float(id == wanted[at]) for id in row.ids] for at, row in enumerate(result.results)]
        answer = reward(shop, result.draw, rewards, owner="me", learning_rate=0.02)
        draft = answer.draft
        means.append(answer.mean_reward)
    assert means[0] < 0.2
    assert np.mean(means[-4:]) > 0.9
    found = attention_parts(shop, question(draft=draft))
    assert [ids[0] for ids in found.ids] == [*wanted]
    assert shop.store.models() == []
    assert len(shop.drafts) == bounds.MAX_DRAFTS  # older ones made room
    assert draft is not None
    version = shop.add_model(shop.drafts.get(draft, "me").head, {})
    served = attention_parts(shop, GradientQuery(texts=QUERIES, model=version, options=question().options))
    assert served.ids == found.ids


def test_a_draw_is_rewarded_once_by_its_owner_while_it_lives(
    shop: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros = [[0.0] * 8] * 2
    first = draw(shop, question()).draw
    with pytest.raises(Gone, match="draw again"):
        reward(shop, first, zeros, owner="you", gradients=True)
    reward(shop, first, zeros, owner="me", gradients=True)
    with pytest.raises(Gone, match="draw again"):
        reward(shop, first, zeros, owner="me", gradients=True)
    monkeypatch.setattr(bounds, "MAX_DRAWS", 2)
    names = [draw(shop, question()).draw for _ in range(3)]
    with pytest.raises(Gone):
        reward(shop, names[0], zeros, owner="me", gradients=True)
    monkeypatch.setattr(shop.draws, "_clock", lambda: 1e12)
    with pytest.raises(Gone):
        reward(shop, names[2], zeros, owner="me", gradients=True)
    assert len(shop.draws) == 0


@pytest.mark.parametrize(
    ("rewards", "options", "message"),
    [
        ([[0.0] * 8], {"gradients": True}, "rewards of 1 query for a draw of 2"),
        ([[0.0] * 8, [0.0] * 7], {"gradients": True}, r"rewards.1 has 7 numbers for 8 documents"),
        ([[0.0] * 8, [float("nan")] * 8], {"gradients": True}, r"rewards.1: use finite numbers"),
        ([[0.0] * 8, [1e300] * 8], {"gradients": True}, r"rewards.1: use finite numbers, up to 1e\+06"),
        ([[0.0] * 8] * 2, {}, "neither learning_rate nor include"),
        ([[0.0] * 8] * 2, {"learning_rate": 0.0}, "use a number above 0 and up to 1"),
        ([[0.0] * 8] * 2, {"learning_rate": 2.0}, "use a number above 0 and up to 1"),
    ],
)
def test_hostile_rewards_are_refused_and_leave_the_draw(
    shop: Collection, rewards: list[list[float]], options: dict[str, float], message: str
) -> None:
    token = draw(shop, question()).draw
    with pytest.raises(InvalidRequest, match=message):
        reward(shop, token, rewards, owner="me", **options)  # type: ignore[arg-type]
    reward(shop, token, [[0.0] * 8] * 2, owner="me", gradients=True)


def test_the_bounds_of_rewards_and_rates_are_inside(shop: Collection) -> None:
    result = draw(shop, question())
    rewards = [[1e6 if id == "p2" else -1e6 for id in row.ids] for row in result.results]
    answer = reward(shop, result.draw, rewards, owner="me", learning_rate=1.0)
    assert answer.draft is not None


def test_draws_have_bounds(shop: Collection) -> None:
    for samples in (1, 65):
        with pytest.raises(InvalidRequest, match=f"samples={samples}; use 2 to 64"):
            draw(shop, question(), samples)
    with pytest.raises(InvalidRequest, match="65 queries; draw for at most 64"):
        draw(shop, GradientQuery(states=torch.ones(65, 32)))


def test_the_size_of_a_draw_is_that_of_what_it_keeps(
    shop: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States, a head and texts that were handed in: else a few draws fill the memory."""
    monkeypatch.setattr(shop, "draws", Draws())
    head = {name: tensor.tolist() for name, tensor in head_tensors(Head(32)).items()}
    numbers = sum(tensor.numel() for tensor in head_tensors(Head(32)).values())
    states, sizes = torch.ones(8, 32), [0]
    for query in (
        GradientQuery(states=states[:1]),
        GradientQuery(states=states),
        GradientQuery(states=states[:1], with_head=head),
        GradientQuery(texts=["x"]),
        GradientQuery(texts=["x" * 1000]),
    ):
        draw(shop, query, 2, 1)
        sizes.append(shop.draws.size)
    one, eight, headed, short, long = np.diff(sizes).tolist()
    assert eight - one == 7 * (32 * 4 + 2 * 8)  # and its places
    assert headed - one == 4 * numbers
    assert long - short == 4 * 999


def test_nothing_to_draw_has_no_rewards_and_hard_pooling_no_gradient(shop: Collection) -> None:
    nothing = draw(shop, question(filter={"n": {"eq": 1}}))
    assert [row.ids for row in nothing.results] == [[], []]
    answer = reward(shop, nothing.draw, [[], []], owner="me", gradients=True)
    assert answer.mean_reward == 0
    assert answer.states is not None
    assert not answer.states.any()
    flat = draw(shop, question(options={"mode": "dense", "pooling": "hard"}))
    assert {*map(len, map(set, (row.ids for row in flat.results)))} == {1}
    answer = reward(shop, flat.draw, [[1.0] * 8] * 2, owner="me", gradients=True)
    assert answer.states is not None
    assert not answer.states.any()


def test_the_state_of_the_draw_is_asked_or_is_gone(shop: Collection) -> None:
    head = Head(32)
    with torch.no_grad():
        head.key_delta += 0.1
    version = shop.add_model(head, {})
    token = draw(shop, question(model=version)).draw
    shop.delete_model(version)
    with pytest.raises(Gone):
        reward(shop, token, [[0.0] * 8] * 2, owner="me", gradients=True)


def test_a_version_with_a_memory_gives_gradients_and_takes_no_step(shop: Collection) -> None:
    """Its head is only a part of it, so that no draft can stand for the version."""
    head, at = Head(32), np.arange(2)
    states = HashingEncoder().encode_queries(QUERIES)
    head.memory = QueryMemory(states, states, at + 1, at, at, np.ones(2), strength=0.5)
    asked = question(model=shop.add_model(head.eval(), {}))
    rewards = [[1.0, 0.0], [0.0, 1.0]]
    drawn = draw(shop, asked, 2, 1)
    with pytest.raises(Conflict):
        reward(shop, drawn.draw, rewards, owner="me", learning_rate=0.1)
    found = reward(shop, drawn.draw, rewards, owner="me", gradients=True)
    assert found.states is not None
    assert found.head is not None
    assert (found.mean_reward, found.draft) == (np.mean(rewards), None)


def test_the_mean_reward_is_of_what_was_drawn(shop: Collection) -> None:
    """A query without a candidate has no draw and no reward; zeros in its place would halve the mean."""
    asked = GradientQuery(texts=["bread", "zebra"], owner="me", options={"mode": "keyword"})  # type: ignore[arg-type]
    result = draw(shop, asked, 4, 1)
    assert [len(row.ids) for row in result.results] == [4, 0]
    answer = reward(shop, result.draw, [[1.0, 2.0, 3.0, 6.0], []], owner="me", gradients=True)
    assert answer.mean_reward == 3.0
    assert answer.states is not None
    assert answer.head is not None
    assert all(np.isfinite(gradient).all() for gradient in (answer.states, *answer.head.values()))


def test_the_moments_of_adam_go_on_with_the_draft(shop: Collection) -> None:
    draft = None
    for step in (1, 2, 3):
        result = draw(shop, question(draft=draft), 4, step)
        rewards = np.random.default_rng(step).normal(size=(2, 4)).tolist()
        draft = reward(shop, result.draw, rewards, owner="me", learning_rate=0.01).draft
        assert draft is not None
        moments: Any = shop.drafts.get(draft, "me").moments
        assert {float(of["step"]) for of in moments.values()} == {float(step)}


def test_a_step_leaves_the_heads_that_it_starts_from(shop: Collection) -> None:
    """The version still answers searches, and the draft before answers whoever names it."""
    started: list[tuple[str | None, dict[str, torch.Tensor], list[list[float]]]] = []
    draft = None
    for step in range(3):
        asked = question(draft=draft)
        head = shop.head("v0") if draft is None else shop.drafts.get(draft, "me").head
        numbers = {name: tensor.clone() for name, tensor in head.own_tensors().items()}
        started.append((draft, numbers, attention_parts(shop, asked).weights.tolist()))
        result = draw(shop, asked, 4, step)
        draft = reward(shop, result.draw, [[1.0, 0.0, 0.0, 0.5]] * 2, owner="me", learning_rate=0.05).draft
    for before, numbers, weights in started:
        head = shop.head("v0") if before is None else shop.drafts.get(before, "me").head
        assert all(torch.equal(tensor, numbers[name]) for name, tensor in head.own_tensors().items())
        assert attention_parts(shop, question(draft=before)).weights.tolist() == weights
    assert len({str(weights) for _, _, weights in started}) == 3


@pytest.mark.parametrize(
    "rewards", [[[1.0] * 4], [[1.0] * 4, [1.0] * 3], [[1.0] * 4, [1.0] * 5], [[1.0] * 4, [float("nan")] * 4]]
)
def test_rewards_that_do_not_fit_leave_the_draw(shop: Collection, rewards: list[list[float]]) -> None:
    result = draw(shop, question(), 4, 1)
    with pytest.raises(InvalidRequest):
        reward(shop, result.draw, rewards, owner="me", gradients=True)
    assert reward(shop, result.draw, [[1.0] * 4] * 2, owner="me", gradients=True).mean_reward == 1.0
    with pytest.raises(Gone):
        reward(shop, result.draw, [[1.0] * 4] * 2, owner="me", gradients=True)


def test_a_step_that_is_refused_leaves_the_draw(shop: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error advises smaller rewards: they must still find the draw."""
    result = draw(shop, question(), 4, 1)
    rewards = [[1.0, 0.0, 0.0, 0.0]] * 2
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "isfinite", lambda tensor: torch.zeros_like(tensor, dtype=torch.bool))
        with pytest.raises(InvalidRequest, match="use smaller rewards"):
            reward(shop, result.draw, rewards, owner="me", learning_rate=0.1)
    assert reward(shop, result.draw, rewards, owner="me", learning_rate=0.1).draft is not None
    with pytest.raises(Gone):
        reward(shop, result.draw, rewards, owner="me", learning_rate=0.1)

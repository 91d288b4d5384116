"""The partition over a whole snapshot, written out for every mode and every way of computing it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.engine.layers import opened_head
from support.engine.long_documents import WORDS
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.fixed_head import FixedHead
from dsearch.engine import Collection, SearchEngine, SearchLayer
from dsearch.engine.ranking import coverage as module
from dsearch.engine.ranking.coverage import covered_mass, mass_of, whole_log_partition
from dsearch.engine.ranking.ranker import Ranker
from dsearch.engine.snapshot import Snapshot
from dsearch.types import Document

TEXTS = ["apple bread", "cheese and honey", "nothing known"]
TEMPERATURE, WEIGHTS = 0.3, [0.5, 2.0]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    """Built and fresh documents; in `food` some of each are deleted. Read only."""
    with SearchEngine(tmp_path_factory.mktemp("home"), encoder=HashingEncoder) as opened:
        for name in ("food", "whole"):
            made = opened.create(name)
            made.ingest([Document(f"d{n}", f"{WORDS[n]} and {WORDS[n * 5 % 16]}") for n in range(16)])
            made.upsert([Document("fresh", "apple apple cheese"), Document("second", "bread")])
        opened.collection("food").delete(["d3", "second"])
        yield opened


@pytest.fixture
def food(engine: SearchEngine) -> Collection:
    return engine.collection("food")


def folded(heads: int = 2) -> np.ndarray:
    drawn = np.random.default_rng(0).standard_normal((3, heads, 32)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)


def everything(snapshot: Snapshot) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every position: inner products of each head, keyword scores, and a part by a memory."""
    embeddings = snapshot.embeddings(np.arange(snapshot.positions))
    memory = np.random.default_rng(1).random((3, snapshot.positions)).astype(np.float32)
    return (folded() @ embeddings.T).astype(np.float32), snapshot.all_keyword_scores(TEXTS), memory


def written_out(snapshot: Snapshot, mode: str, texts: bool, weighed: bool, remembering: bool) -> np.ndarray:
    dense, keyword, memory = everything(snapshot)
    logits = np.zeros(dense.shape)
    if mode != "keyword":
        logits = logits + dense
    if texts and weighed and mode != "dense":
        logits = logits + np.array(WEIGHTS)[:, None] * keyword[:, None]
    if remembering:
        logits = logits + memory[:, None]
    if snapshot.excluded is not None:
        logits = np.where(snapshot.excluded, -np.inf, logits)
    return np.log(np.exp(logits / TEMPERATURE).sum(-1))


@pytest.mark.parametrize("remembering", [False, True], ids=["plain", "memory"])
@pytest.mark.parametrize("excluded", [False, True], ids=["all", "excluded"])
@pytest.mark.parametrize("mode", ["dense", "keyword", "hybrid"])
def test_the_partition_is_the_sum_over_what_can_be_found(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, mode: str, excluded: bool, remembering: bool
) -> None:
    snapshot = engine.collection("food" if excluded else "whole").snapshot
    assert (snapshot.excluded is not None) == excluded
    dense, keyword, memory = everything(snapshot)
    options: dict[str, Any] = {"mode": mode, "memory_of_all": memory if remembering else None}
    known = {"dense_of_all": dense, "keyword_of_all": keyword}
    ways: list[tuple[Any, Any, Any, dict[str, Any]]] = [
        (folded(), np.array(WEIGHTS, np.float32), np.float32(TEMPERATURE), {}),
        (folded(), np.array(WEIGHTS, np.float32), np.float32(TEMPERATURE), known),
        (torch.as_tensor(folded()), torch.tensor(WEIGHTS), torch.tensor(TEMPERATURE), {}),
        (torch.as_tensor(folded()), torch.tensor(WEIGHTS), torch.tensor(TEMPERATURE), known),
    ]
    for texts, weighed in ((TEXTS, True), (None, True), (TEXTS, False)):
        expected = written_out(snapshot, mode, texts is not None, weighed, remembering)
        for at_once in (module.SCORES_AT_ONCE, 0):
            with monkeypatch.context() as patch, torch.no_grad():
                patch.setattr(module, "SCORES_AT_ONCE", at_once)
                for queries, weights, temperature, beside in ways:
                    found = whole_log_partition(
                        snapshot,
                        queries,
                        texts,
                        keyword_weight=weights if weighed else None,
                        temperature=temperature,
                        **options,
                        **beside,
                    )
                    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4)


def test_with_gradients_known_scores_are_computed_again(food: Collection) -> None:
    """They have no gradient; the partition must."""
    dense, _, _ = everything(food.snapshot)
    queries = torch.as_tensor(folded()).requires_grad_()
    whole = whole_log_partition(
        food.snapshot,
        queries,
        None,
        mode="dense",
        keyword_weight=None,
        temperature=torch.tensor(TEMPERATURE),
        dense_of_all=dense,
    )
    whole.sum().backward()
    assert queries.grad is not None
    assert queries.grad.abs().sum() > 0


@pytest.mark.parametrize("candidates", [1, 4, 100])
@pytest.mark.parametrize("mode", ["dense", "keyword", "hybrid"])
def test_covered_mass_is_the_candidates_share(food: Collection, mode: str, candidates: int) -> None:
    states = torch.as_tensor(food.encoder.encode_queries(TEXTS))
    head = food.head("v0")
    with torch.inference_mode():
        layer = SearchLayer(food.snapshot, head, mode=mode, candidates=candidates)
        output = layer(states, TEXTS)
        share = covered_mass(output, layer, TEXTS)
        every = SearchLayer(food.snapshot, head, mode=mode, candidates=100, over="all")(states, TEXTS)
    for query in range(3):
        weights = dict(zip(every.positions[query].tolist(), every.weights[query].tolist(), strict=True))
        inside = [at for at in output.positions[query].tolist() if at >= 0]
        assert float(share[query]) == pytest.approx(sum(weights[at] for at in inside), abs=1e-4)
    fixed = Ranker(food.snapshot, FixedHead(32), mode=mode, candidates=candidates)
    with torch.inference_mode():
        in_numpy = covered_mass(fixed.ranked(states.numpy(), TEXTS), fixed, TEXTS)
    np.testing.assert_allclose(in_numpy, share, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 3])
def test_the_share_is_of_the_mixture_and_of_candidates_alone(food: Collection, heads: int) -> None:
    """Whatever a second stage adds; what is listed behind the candidates covers nothing."""
    states = torch.as_tensor(food.encoder.encode_queries(TEXTS))
    head = opened_head(heads)
    if heads > 1:
        head.mixture_logits.data = torch.tensor([2.0, 0.0, -1.0])
    with torch.inference_mode():
        layer = SearchLayer(food.snapshot, head, mode="dense", candidates=4, hops=1)
        output = layer(states)
        every = SearchLayer(food.snapshot, head, mode="dense", candidates=100, hops=1)(states)
        staged = output._replace(second=torch.linspace(0, 1, output.scores.numel()).reshape(3, -1))
        is_extra = np.zeros(output.positions.shape, bool)
        is_extra[:, 2:] = True
        shares = [
            covered_mass(one, layer, None) for one in (output, staged, output._replace(is_extra=is_extra))
        ]
    for query in range(3):
        weights = dict(zip(every.positions[query].tolist(), every.weights[query].tolist(), strict=True))
        kept = [weights[at] for at in output.positions[query].tolist() if at >= 0]
        expected = [sum(kept), sum(kept), sum(kept[:2])]
        assert [float(share[query]) for share in shares] == pytest.approx(expected, abs=1e-5)


def test_of_nothing_nothing_is_covered(food: Collection) -> None:
    layer = SearchLayer(food.snapshot, food.head("v0"), mode="dense", candidates=2)
    with torch.inference_mode():
        output = layer(torch.as_tensor(food.encoder.encode_queries(TEXTS)))
        whole = torch.tensor([[-torch.inf], [0.0], [1e6]])
        share = mass_of(output, whole, temperature=torch.tensor(1.0), mixture=torch.ones(1))
    assert share[0] == 0
    assert share[1] == 1  # never above
    assert share[2] == 0

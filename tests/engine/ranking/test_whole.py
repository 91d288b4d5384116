"""Attention over every document equals attention over candidates that are every document, gradients too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.engine.judged_memory import memory_of_judged
from support.engine.layers import opened_head
from support.engine.reference import many_documents
from support.fakes import HashingEncoder

from dsearch.attention import AdditiveScore
from dsearch.engine import Collection, SearchEngine, SearchLayer, SearchOutput
from dsearch.engine.ranking import whole
from dsearch.engine.snapshot import NONE
from dsearch.types import Document

TEXTS = ["word1 word7", "word3"]
WAYS: dict[str, dict[str, Any]] = {
    "dot": {},
    "gaussian": {"score": "gaussian", "width": 0.4},
    "boxcar": {"score": "boxcar", "width": 1.2},
    "additive": {"score": "additive", "temperature": 0.5},
    "uniform": {"pooling": "uniform"},
    **{pooling: {"pooling": pooling} for pooling in ("exp", "relu", "sigmoid")},
    "exp epanechnikov": {"score": "epanechnikov", "width": 1.2, "pooling": "exp"},
    "uniform boxcar": {"score": "boxcar", "width": 0.8, "pooling": "uniform"},
    "hard": {"pooling": "hard"},
    "hops": {"hops": 2, "hop_strength": 0.5},
    "keyword": {"mode": "keyword"},
    "dense": {"mode": "dense"},
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 rows and fewer, so that several are merged."""
    monkeypatch.setattr(whole, "_ROWS", 64)
    monkeypatch.setattr(whole, "_HIDDEN", 1)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    with SearchEngine(tmp_path_factory.mktemp("many"), encoder=HashingEncoder) as engine:
        collection = engine.create("many")
        collection.ingest(many_documents(200))
        collection.upsert([Document(id=f"fresh{i}", text=f"word{i} word{2 * i}") for i in range(20)])
        collection.delete(["m3", "fresh1"])
        yield collection


def asked(encoder: HashingEncoder) -> torch.Tensor:
    return torch.as_tensor(encoder.encode_queries(TEXTS)).double().requires_grad_()


@pytest.mark.parametrize("heads", [1, 3])
# The keyword leg proposes documents with a word of the query alone; it has a test of its own.
@pytest.mark.parametrize("way", [way for way in WAYS if way != "keyword"])
def test_it_is_attention_over_candidates_that_are_all(
    many: Collection, encoder: HashingEncoder, heads: int, way: str
) -> None:
    outputs: list[SearchOutput] = []
    gradients: list[list[torch.Tensor | None]] = []
    over: Any
    for over, candidates in (("all", 30), ("candidates", 1000)):
        head = opened_head(heads).double()
        layer = SearchLayer(many.snapshot, head, over=over, candidates=candidates, **WAYS[way])
        states = asked(encoder)
        found = layer(states, TEXTS)
        outputs.append(found)
        shown = found.scores[:, :5].masked_fill(found.scores[:, :5] == -torch.inf, 0.0)
        loss = found.context.square().sum() + found.weights[:, :5].square().sum() + shown.square().sum()
        if loss.requires_grad:
            loss.backward()
        gradients.append([states.grad, *(one.grad for one in head.parameters())])
    every, listed = outputs
    torch.testing.assert_close(every.context, listed.context, atol=1e-5, rtol=1e-4)
    shown = min(every.weights.shape[1], 30)
    torch.testing.assert_close(every.weights[:, :shown], listed.weights[:, :shown], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(every.scores[:, :shown], listed.scores[:, :shown], atol=1e-4, rtol=1e-4)
    assert every.covered_mass is not None
    assert listed.covered_mass is not None
    assert every.covered_mass.tolist() == [1.0, 1.0]
    torch.testing.assert_close(listed.covered_mass, torch.ones(2).double(), atol=1e-6, rtol=0)
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("heads", [1, 3])
def test_past_queries_have_their_part_over_all(many: Collection, encoder: HashingEncoder, heads: int) -> None:
    states = torch.as_tensor(encoder.encode_queries(TEXTS))
    outputs: list[SearchOutput] = []
    over: Any
    for over, candidates in (("all", 20), ("candidates", 1000)):
        head = opened_head(heads)
        head.memory = memory_of_judged(many, ["word1 word2"], [{"m50": 1.0, "m60": 2.0}], strength=0.4)
        with torch.no_grad():
            layer = SearchLayer(many.snapshot, head, over=over, candidates=candidates, hops=1)
            outputs.append(layer(states, TEXTS))
    every, listed = outputs
    assert every.memory is not None
    assert every.memory.max() > 0.05
    torch.testing.assert_close(every.context, listed.context, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(every.weights[:, :20], listed.weights[:, :20], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["soft", "hard", "uniform"])
def test_weights_among_some_documents_are_shared_by_those(
    many: Collection, encoder: HashingEncoder, pooling: str
) -> None:
    snapshot, states = many.snapshot, torch.as_tensor(encoder.encode_queries(TEXTS))
    among = np.zeros(snapshot.positions, bool)
    among[1::3] = True
    visible = snapshot.visible()
    with torch.no_grad():
        listed = SearchLayer(snapshot, opened_head(1), candidates=1000, hops=1)(states, TEXTS)
        layer = SearchLayer(snapshot, opened_head(1), over="all", candidates=5, hops=1, pooling=pooling)
        blocks = list(layer.whole(states, TEXTS).weights(among))
    rows = np.concatenate([rows for rows, _, _ in blocks])
    weights = torch.cat([weights for _, weights, _ in blocks], dim=1)
    assert len(blocks) > 1
    assert rows.tolist() == visible[among[visible]].tolist()
    for query in range(len(TEXTS)):
        scores = dict(zip(listed.positions[query].tolist(), listed.scores[query], strict=True))
        of_rows = torch.stack([scores[at] for at in rows.tolist()])
        expected = {
            "soft": (of_rows / layer.head.temperature).softmax(0),
            "hard": torch.nn.functional.one_hot(of_rows.argmax(), len(rows)).float(),
            "uniform": torch.full_like(of_rows, 1 / len(rows)),
        }
        torch.testing.assert_close(weights[query], expected[pooling], atol=1e-5, rtol=1e-4)
    assert sum(reached for _, _, reached in blocks).tolist() == [len(rows)] * 2  # type: ignore[union-attr]


def test_where_nothing_is_in_reach_nothing_is_left_uncovered(
    many: Collection, encoder: HashingEncoder
) -> None:
    layer = SearchLayer(many.snapshot, opened_head(1), mode="dense", score="boxcar", width=1e-4)
    with torch.no_grad():
        found = layer(torch.as_tensor(encoder.encode_queries(TEXTS)))
    assert (found.positions == NONE).all()
    assert found.covered_mass is not None
    assert found.covered_mass.tolist() == [1.0, 1.0]


def test_a_hop_pools_as_many_documents_however_few_are_listed(
    many: Collection, encoder: HashingEncoder
) -> None:
    states = torch.as_tensor(encoder.encode_queries(TEXTS))
    with torch.no_grad():
        few, more = (
            SearchLayer(many.snapshot, opened_head(1), over="all", candidates=count, **WAYS["hops"])(
                states, TEXTS
            )
            for count in (2, 40)
        )
    torch.testing.assert_close(few.folded, more.folded, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(few.weights, more.weights[:, :2], atol=1e-6, rtol=1e-4)


def test_keywords_alone_weigh_documents_without_the_words_too(many: Collection) -> None:
    layer = SearchLayer(many.snapshot, opened_head(1), mode="keyword", over="all", candidates=5)
    with torch.no_grad():
        found = layer(torch.zeros(2, 32), TEXTS)
    scores = many.snapshot.all_keyword_scores(TEXTS)[:, many.snapshot.visible()]
    weight, temperature = layer.head.keyword_weight.detach(), layer.head.temperature.detach()
    logits = torch.as_tensor(scores) * weight / temperature
    best = logits.softmax(1).sort(dim=1, descending=True).values[:, :5]
    torch.testing.assert_close(found.weights, best, atol=1e-6, rtol=1e-4)


def test_long_documents_are_pooled_by_their_best_passages(long: Collection, encoder: HashingEncoder) -> None:
    states = torch.as_tensor(encoder.encode_queries(["apple honey", "w3 w4"])).double()
    for heads in (1, 2):
        head = opened_head(heads).double()
        with torch.no_grad():
            every = SearchLayer(long.snapshot, head, mode="dense", over="all", candidates=4)(states)
            listed = SearchLayer(long.snapshot, head, mode="dense", candidates=100)(states)
        torch.testing.assert_close(every.context, listed.context, atol=1e-5, rtol=1e-4)
        assert np.array_equal(every.positions, listed.positions[:, :4])


def test_values_and_a_learned_score_get_gradients(many: Collection, encoder: HashingEncoder) -> None:
    collected: list[list[torch.Tensor | None]] = []
    over: Any
    for over, candidates in (("all", 10), ("candidates", 1000)):
        torch.manual_seed(0)
        score = AdditiveScore(32, 32, 8).double()
        values = torch.randn(many.snapshot.positions, 3).double().requires_grad_()
        layer = SearchLayer(
            many.snapshot,
            opened_head(1).double(),
            mode="dense",
            over=over,
            candidates=candidates,
            score=score,
        )
        layer(asked(encoder), values=values).context.square().sum().backward()
        collected.append([values.grad, *(one.grad for one in score.parameters())])
    for one, other in zip(*collected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)


def test_nothing_of_the_size_of_queries_times_documents_times_dimension_is_kept(
    many: Collection, encoder: HashingEncoder
) -> None:
    """The backward computes blocks again: what the forward saves does not grow with the collection."""
    saved: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    head = opened_head(1).double()
    layer = SearchLayer(many.snapshot, head, mode="dense", over="all", candidates=4)
    states = asked(encoder)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        found = layer(states)
    assert found.context.requires_grad
    assert max(saved) < len(states) * many.snapshot.documents * 32 / 4


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("way", ["dot", "dense", "hard", "boxcar", "uniform"])
def test_a_sample_of_every_document_gives_the_exact_covered_mass(
    many: Collection, encoder: HashingEncoder, monkeypatch: pytest.MonkeyPatch, heads: int, way: str
) -> None:
    """Candidates count once, and the rest as many times as it stands for."""
    layer = SearchLayer(many.snapshot, opened_head(heads), candidates=6, **WAYS[way])
    states = torch.as_tensor(encoder.encode_queries(TEXTS))
    with torch.no_grad():
        exact = layer(states, TEXTS).covered_mass
        monkeypatch.setattr(whole, "COVERAGE_DOCUMENTS", 10)
        monkeypatch.setattr(whole, "SAMPLE", many.snapshot.documents)
        sampled = layer(states, TEXTS)
    torch.testing.assert_close(sampled.covered_mass, exact, atol=1e-5, rtol=1e-5)
    if way == "dot":
        assert (sampled.positions == NONE).any()  # one has fewer candidates
        assert exact is not None
        assert 0 < exact.min() < exact.max() < 1


def test_an_empty_collection_gives_zeros(engine: SearchEngine) -> None:
    snapshot = engine.create("empty").snapshot
    for way in WAYS.values():
        found = SearchLayer(snapshot, opened_head(1), over="all", **way)(torch.ones(2, 32), TEXTS)
        assert not found.context.any()
        assert found.weights.shape == (2, 0)


def test_of_equal_scores_in_several_blocks_the_first_documents_are_kept() -> None:
    """Wherever the blocks end, and in whichever order they come."""
    first = np.array([3.0, 1.0, 1.0], np.float32), np.array([10, 11, 12])
    other = np.array([1.0, 3.0], np.float32), np.array([2, 30])
    for pair in ((first, other), (other, first)):
        scores, positions = whole._merged(*pair, 4)
        assert (scores.tolist(), positions.tolist()) == ([3, 3, 1, 1], [10, 30, 2, 11])
    many = np.zeros(400, np.float32), np.arange(400)[::-1].copy()
    assert whole._merged(many, first, 5)[1].tolist() == [10, 11, 12, 0, 1]

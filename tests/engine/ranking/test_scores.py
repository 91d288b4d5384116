"""Scores and poolings by name over a collection."""

from __future__ import annotations

from collections.abc import Iterator

import jaxtyping
import numpy as np
import pytest
import torch
from support.engine.layers import opened_head
from support.engine.reference import QUERY, many_documents
from support.fakes import HashingEncoder

from dsearch import attention
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.engine import Collection, SearchEngine, SearchLayer, open_layer
from dsearch.engine.ranking.scores import EQUAL, NamedScore, chosen_stages
from dsearch.errors import InvalidRequest
from dsearch.types import Document, Mode

WIDTHS = {"gaussian": 0.3, "epanechnikov": 1.3, "boxcar": 1.2}
VECTOR_SCORES = [name for name in attention.SCORES if name != "exact_match"]


@pytest.fixture
def unchecked() -> Iterator[None]:
    """As in production, where our own checks must do."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    """Built, fresh and deleted documents; read only, so that it is made once."""
    with SearchEngine(tmp_path_factory.mktemp("many"), encoder=HashingEncoder) as engine:
        collection = engine.create("many")
        collection.ingest(many_documents(400))
        collection.upsert([Document(id=f"fresh{i}", text=f"word{i} word{2 * i}") for i in range(20)])
        collection.delete(["m3", "fresh1"])
        yield collection


def every_key(collection: Collection) -> torch.Tensor:
    return torch.as_tensor(collection.snapshot.embeddings(collection.snapshot.visible()))


@pytest.mark.parametrize("pooling", ["soft", "hard", "uniform", "exp", "relu", "sigmoid"])
@pytest.mark.parametrize("score", VECTOR_SCORES)
def test_over_all_documents_it_is_attention(
    collection: Collection, encoder: HashingEncoder, score: str, pooling: str
) -> None:
    states = torch.as_tensor(encoder.encode_queries([QUERY, "apple"]))
    width = WIDTHS.get(score)
    found = collection.attend(states, score=score, pooling=pooling, width=width, temperature=0.5).output
    keys = every_key(collection)
    function = attention.SCORES[score]
    expected = attention.attend(
        states,
        keys,
        score=(lambda q, k: function(q, k, width)) if width else score,
        pooling=pooling,
        temperature=0.5,
    )
    torch.testing.assert_close(found.context, expected.context, atol=1e-5, rtol=1e-5)
    order = expected.weights.sort(dim=1, descending=True).values[:, : found.weights.shape[1]]
    torch.testing.assert_close(found.weights.sort(dim=1, descending=True).values, order, atol=1e-5, rtol=1e-5)


def test_the_default_is_the_inner_product_and_the_heads_temperature(many: Collection) -> None:
    plain, named = many.attend([QUERY]), many.attend([QUERY], score="dot", pooling="soft")
    for one, other in zip(plain.output, named.output, strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other))
    general = many.attend([QUERY], score="general", temperature=0.05)
    torch.testing.assert_close(general.output.weights, plain.output.weights)
    cosine = many.attend([QUERY], score="cosine")
    torch.testing.assert_close(cosine.output.weights, plain.output.weights, atol=1e-5, rtol=1e-4)


def test_hybrid_adds_the_keyword_part_to_any_score(many: Collection, encoder: HashingEncoder) -> None:
    text = "word1 word7"
    found = many.attend([text], score="gaussian", width=0.5, candidates=1000).output
    states = torch.as_tensor(encoder.encode_queries([text]))
    snapshot = many.snapshot
    kernel = attention.gaussian(states, torch.as_tensor(snapshot.embeddings(found.positions[0])), 0.5)
    keyword = torch.as_tensor(snapshot.keyword_scores([text], found.positions))
    torch.testing.assert_close(found.scores, kernel + keyword, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.weights, (kernel + keyword).softmax(-1), atol=1e-5, rtol=1e-5)


def test_outside_a_kernels_support_nothing_is_found(collection: Collection, encoder: HashingEncoder) -> None:
    states = torch.as_tensor(encoder.encode_queries(["cheese", "nothing known"]))
    found = collection.attend(states, score="boxcar", width=0.9)
    distances = torch.cdist(states, every_key(collection))
    counts = (distances < 0.9).sum(1)
    assert counts[0] > 0 == counts[1]
    assert [sum(id != "" for id in ids) for ids in found.ids] == counts.tolist()
    torch.testing.assert_close(
        found.output.weights[0, : int(counts[0])], torch.full((counts[0],), 1 / counts[0])
    )
    assert torch.equal(found.output.context[1], torch.zeros(32))


def test_what_one_head_reaches_is_found(many: Collection, encoder: HashingEncoder) -> None:
    """A document outside the support of the other heads' kernels has weight by that one."""
    head = opened_head(3)
    states, at = torch.as_tensor(encoder.encode_queries([QUERY])), many.snapshot.visible()
    with torch.no_grad():
        distances = torch.cdist(head.queries(states)[0], head.keys(every_key(many)))
        width = distances.flatten().kthvalue(distances.numel() // 4).values.item() + 1e-4
        own = {"mode": "dense", "hops": 1, "score": "boxcar", "width": width, "candidates": 1000}
        found = SearchLayer(many.snapshot, head, **own)(states)
    reached = at[(distances < width).any(0).numpy()]
    assert len(reached) > (distances < width).all(0).sum()
    assert sorted(found.positions[found.positions >= 0].tolist()) == sorted(reached.tolist())


def test_a_score_that_is_only_registered_ranks(
    many: Collection, encoder: HashingEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry of `SCORES` is all that a new score needs."""

    def manhattan(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return -(queries.unsqueeze(-2) - keys.unsqueeze(-3)).abs().sum(-1)

    monkeypatch.setitem(attention.SCORES, "manhattan", manhattan)
    states = torch.as_tensor(encoder.encode_queries([QUERY]))
    attended = many.attend(states, score="manhattan", candidates=1000)
    keys = torch.as_tensor(many.snapshot.embeddings(attended.output.positions[0]))
    torch.testing.assert_close(attended.output.scores, manhattan(states, keys), atol=1e-5, rtol=1e-5)


def test_a_layer_that_matches_a_field_follows_its_documents(engine: SearchEngine) -> None:
    names = engine.create("names")
    names.ingest([Document("a", "Li"), Document("b", "Hu")])
    layer = open_layer(engine, "names", score="exact_match", match_field="text")
    states = torch.ones(1, 32, requires_grad=True)
    assert layer(states, ["Li"]).ids == [["a"]]
    names.upsert([Document("c", "Knuth")])
    names.delete(["a"])
    over_others = layer.with_documents(names.snapshot)
    layer.refresh()
    for moved in (layer, over_others):
        assert [moved(states, [text]).ids for text in ("Li", "Hu", "Knuth")] == [[[]], [["b"]], [["c"]]]
    layer(states, ["Hu"]).context.sum().backward()
    assert states.grad is not None
    assert not states.grad.any()  # a match is flat in them


def test_a_score_of_ones_own_learns_with_the_layer(collection: Collection, encoder: HashingEncoder) -> None:
    score = attention.KernelScore("gaussian", 0.5)
    layer = SearchLayer(collection.snapshot, Head(32), mode="dense", score=score)
    assert layer.temperature == 1.0
    layer(torch.as_tensor(encoder.encode_queries([QUERY]))).context.square().sum().backward()
    assert score.log_width.grad is not None
    assert score.log_width.grad.abs() > 0
    assert "score.log_width" in layer.state_dict()


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("score", ["epanechnikov", "boxcar", "exact_match"])
@pytest.mark.parametrize("heads", [1, 3])
def test_what_is_outside_leaves_no_nan_in_any_gradient(
    collection: Collection, encoder: HashingEncoder, score: str, heads: int
) -> None:
    layer = SearchLayer(collection.snapshot, opened_head(heads), hops=2, score=score, width=WIDTHS.get(score))
    texts = ["cheese", "nothing known"]
    states = torch.as_tensor(encoder.encode_queries(texts)).requires_grad_()
    found = layer(states, texts)
    finite = torch.where(torch.isfinite(found.scores), found.scores, 0.0)
    with torch.autograd.detect_anomaly(check_nan=True):  # none on the way either
        (found.context.sum() + finite.sum()).backward()
    for tensor in (states, *layer.parameters()):
        assert tensor.grad is None or torch.isfinite(tensor.grad).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "euclid"}, "score='euclid'; use one of dot, scaled_dot_product, cosine"),
        ({"pooling": "max"}, "pooling='max'; use one of soft, hard, uniform"),
        ({"width": 0.5}, "width=0.5 with score='dot'; only gaussian, epanechnikov, boxcar have a width"),
        ({"score": "gaussian", "width": 0.0}, "width=0.0; use a number above 0"),
        ({"score": "gaussian", "width": float("nan")}, "width=nan; use a number above 0"),
        ({"temperature": 0.0}, "temperature=0.0; use a number above 0"),
        ({"temperature": float("inf")}, "temperature=inf; use a number above 0"),
        ({"mode": "keyword", "score": "cosine"}, "mode='keyword' scores by keywords alone; leave score out"),
        ({"score": attention.cosine, "width": 1.0}, "width=1.0 beside a score of your own"),
    ],
)
def test_bad_options_say_what_is_allowed(
    collection: Collection, unchecked: None, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        collection.attend(["x"], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [0.5, 1.0, 4.0])
def test_vectors_are_equal_within_a_share_of_the_querys_length(length: float) -> None:
    score, query = NamedScore("exact_match"), torch.tensor([[[0.0, length]]])
    away = torch.tensor([0.0, 0.9 * EQUAL, 1.1 * EQUAL, 10 * EQUAL]) * length
    keys = torch.stack([torch.zeros(4), length - away], 1)[None]
    assert score(query, keys)[0, 0].tolist() == [0, 0, -torch.inf, -torch.inf]


WITHOUT, WITH = Head(32), Head(32).reranking(SecondStage())
ASKED = [
    (None, True, WITH, "hybrid", True, 2),  # the head's own
    (None, True, WITH, "dense", True, 1),
    (None, True, WITH, "keyword", True, 1),
    (None, True, WITH, "hybrid", False, 1),
    (None, False, WITH, "hybrid", True, 1),
    (None, True, WITHOUT, "hybrid", True, 1),
    (1, True, WITH, "hybrid", True, 1),
    (1, False, WITHOUT, "keyword", False, 1),
    (2, True, WITH, "hybrid", True, 2),
    (2, True, WITHOUT, "dense", True, 2),
    (2, False, WITH, "hybrid", True, "by documents without tokens"),
    (2, True, WITH, "keyword", True, "a second stage follows hybrid or dense search"),
    (2, True, WITH, "hybrid", False, "a second stage follows hybrid or dense search"),
    (0, True, WITH, "hybrid", True, "stages=0; use 1 or 2"),
    (3, True, WITH, "hybrid", True, "stages=3; use 1 or 2"),
]


@pytest.mark.parametrize(("stages", "has_tokens", "head", "mode", "plain", "expected"), ASKED)
def test_a_second_stage_follows_where_it_is_asked_for_or_learned(
    stages: int | None, has_tokens: bool, head: Head, mode: Mode, plain: bool, expected: int | str
) -> None:
    if isinstance(expected, int):
        assert chosen_stages(stages, head, has_tokens=has_tokens, mode=mode, plain=plain) == expected
        return
    with pytest.raises(InvalidRequest, match=expected):
        chosen_stages(stages, head, has_tokens=has_tokens, mode=mode, plain=plain)

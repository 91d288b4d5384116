"""A keyword weight of the query: served, explained, certified, covered, differentiated, kept and refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from support.engine.explained_parts import checked_parts
from support.fakes import HashingEncoder

from dsearch.attention.head import Head
from dsearch.engine import Collection, SearchEngine, SearchLayer, head_bytes
from dsearch.engine.models.tensors import head_from_bytes
from dsearch.engine.ranking.coverage import covered_mass
from dsearch.engine.search.gradients import Question, attention_parts, vjp
from dsearch.errors import InvalidRequest, UnsupportedFormat
from dsearch.types import Document, Mode

QUERIES = ["cheese and bread with honey", "number7", "zebra lemon", "the of", "kale kale apple"]


def gated_head(heads: int = 1, *, size: float = 0.2, hop_strength: float = 0.0) -> Head:
    """A head whose gate says something else of every query, and that is moved otherwise too."""
    head = Head(32, heads=heads, rank=4, fusion="gate").eval()
    generator = torch.Generator().manual_seed(heads)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            scale = size if name.startswith("fusion_gate") else 0.05
            parameter += scale * torch.randn(parameter.shape, generator=generator)
        head.hop_strength.fill_(hop_strength)
    return head


@pytest.fixture
def foods(collection: Collection) -> Collection:
    """Some documents of the build, one later."""
    collection.upsert([Document("fresh", "cheese and bread and lemon", title="honey")])
    return collection


@pytest.mark.parametrize("mode", ["hybrid", "keyword", "dense"])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("hops", [1, 2])
def test_an_untrained_gate_answers_as_the_constant_to_the_bit(
    foods: Collection, mode: Mode, heads: int, hops: int
) -> None:
    constant = gated_head(heads, hop_strength=0.5)
    constant.fusion, constant.fusion_gate = "constant", None
    gated = Head(32, heads=heads, rank=4, fusion="gate").eval()
    gated.load_state_dict({**gated.state_dict(), **constant.state_dict()})
    states = foods.query_states(QUERIES, mode)
    with torch.inference_mode():
        found, expected = (
            SearchLayer(foods.snapshot, head, mode=mode, hops=hops, candidates=5)(states, QUERIES)
            for head in (gated, constant)
        )
    np.testing.assert_array_equal(found.positions, expected.positions)
    for name in ("context", "weights", "scores", "dense", "keyword", "head_weights"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("heads", [1, 3])
def test_keywords_count_as_the_gate_says(foods: Collection, heads: int) -> None:
    head, states = gated_head(heads), foods.query_states(QUERIES, "hybrid")
    layer = SearchLayer(foods.snapshot, head)
    found = layer(states, QUERIES)
    assert head.fusion_gate is not None
    factors = head.fusion_gate(torch.as_tensor(foods.snapshot.query_features(QUERIES)))
    assert factors[3].tolist() == [1.0] * heads  # "the of": no terms
    assert len({round(one, 3) for one in factors[:, 0].tolist()}) == len(QUERIES)
    b = torch.as_tensor(foods.snapshot.keyword_scores(QUERIES, found.positions))
    torch.testing.assert_close(found.keyword, (head.keyword_weight * factors)[:, :, None] * b[:, None])
    assert SearchLayer(foods.snapshot, head, mode="dense")(states, QUERIES).keyword_weights is None
    assert not layer(states).keyword.any()  # without texts there is nothing to weigh


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("mode", ["hybrid", "keyword", "dense"])
def test_explained_parts_sum_to_the_score_and_name_the_factor(
    foods: Collection, heads: int, mode: Mode
) -> None:
    head = gated_head(heads)
    version = foods.add_model(head, {})
    for query in QUERIES:
        for hit in foods.search(query, model=version, mode=mode, explain=True, limit=20).hits:
            parts = checked_parts(hit, heads)
            if mode == "dense":
                assert parts.fusion_gate is None
                continue
            assert head.fusion_gate is not None
            wanted = head.fusion_gate(torch.as_tensor(foods.snapshot.query_features([query])))
            assert parts.fusion_gate == pytest.approx(wanted[0].tolist(), abs=1e-5)
    assert foods.search("bread", model="v0", explain=True).hits[0].explain.fusion_gate is None  # type: ignore[union-attr]


@pytest.mark.parametrize("heads", [1, 2])
def test_certificates_and_covered_mass_know_the_weights(foods: Collection, heads: int) -> None:
    head = gated_head(heads)
    version = foods.add_model(head, {})
    states = foods.query_states(QUERIES, "hybrid")
    with torch.no_grad():
        whole = SearchLayer(foods.snapshot, head, candidates=100)(states, QUERIES)
        few = SearchLayer(foods.snapshot, head, candidates=3)
        found = few(states, QUERIES)
        covered = covered_mass(found, few, QUERIES)
        logits = ((whole.dense + whole.keyword) / head.temperature).softmax(-1)
    for row, positions in enumerate(found.positions):
        among = torch.as_tensor(np.isin(whole.positions[row], positions[positions >= 0]))
        expected = (head.mixture.detach()[:, None] * logits[row])[:, among].sum()
        assert covered[row].item() == pytest.approx(expected.item(), abs=1e-5)
    proved = 0
    for query in QUERIES:
        attended = foods.attend([query], model=version, certify=1, candidates=6)
        assert attended.certificate is not None
        if attended.certificate.proved.all():
            proved += 1
            exact = foods.attend([query], model=version, candidates=100)
            assert attended.ids[0][0] == exact.ids[0][0]
    assert proved


@pytest.mark.parametrize("heads", [1, 3])
def test_gradients_reach_the_gate_and_vjp_has_them(
    foods: Collection, encoder: HashingEncoder, heads: int
) -> None:
    version = foods.add_model(gated_head(heads), {})
    states = torch.as_tensor(encoder.encode_queries(QUERIES)).double()
    asked = Question(states, QUERIES, model=version, dtype="float64", options={"candidates": 6})
    parts = attention_parts(foods, asked, include={"parts"})
    upstream = torch.randn(parts.arrays["context"].shape, dtype=torch.float64)
    given = vjp(foods, asked, context=upstream.numpy())
    head = copy.deepcopy(foods.head(version)).double()
    layer = SearchLayer(foods.snapshot, head, candidates=6)
    layer(states, QUERIES).context.backward(upstream)
    for name, parameter in head.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        np.testing.assert_allclose(given.head[name], expected, atol=1e-10)
    assert abs(given.head["fusion_gate.inner"]).max() > 1e-6

    assert head.fusion_gate is not None
    names = [name for name, _ in head.fusion_gate.named_parameters()]

    def context(*tensors: torch.Tensor) -> torch.Tensor:
        moved = {f"head.fusion_gate.{name}": one for name, one in zip(names, tensors, strict=True)}
        return torch.func.functional_call(layer, moved, (states, QUERIES)).context

    inputs = tuple(one.detach().clone().requires_grad_() for one in head.fusion_gate.parameters())
    assert torch.autograd.gradcheck(context, inputs)


@pytest.mark.parametrize("heads", [1, 3])
def test_a_gate_is_kept_with_the_model_and_travels(
    foods: Collection, encoder: HashingEncoder, heads: int
) -> None:
    head = gated_head(heads)
    version = foods.add_model(head, {})
    assert foods.store.model(version).record["format"] == 8
    sent, _ = head_from_bytes(head_bytes(head), 32)
    assert sent.fusion == "gate"
    with SearchEngine(foods.store.path.parent, readonly=True, encoder=lambda: encoder) as reader:
        kept = reader.collection("food").head(version)
    for other in (sent, kept):
        for name, tensor in head.state_dict().items():
            torch.testing.assert_close(other.state_dict()[name], tensor)
    assert foods.store.model(foods.add_model(Head(32), {})).record["format"] == 1


def test_a_release_that_does_not_know_gates_refuses_them(
    foods: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = foods.add_model(gated_head(), {})
    monkeypatch.setattr("dsearch.engine.models.files.NEWEST_FORMAT", 7)
    with pytest.raises(UnsupportedFormat, match="has format 8; this release reads 1 to 7"):
        foods.head(version)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("fusion_gate.inner", torch.zeros(16, 6), r"'fusion_gate.inner' of shape \[16, 6\]; use \[16, 7\]"),
        ("fusion_gate.outer", torch.zeros(2, 16), r"'fusion_gate.outer' of shape \[2, 16\]; use \[1, 16\]"),
        ("fusion_gate.bias", torch.full((16,), torch.nan), "'fusion_gate.bias' has numbers that are not"),
        ("fusion_gate.bias", None, "lacks or does not have: 'fusion_gate.bias'"),
        ("fusion_gate.other", torch.zeros(1), "lacks or does not have: 'fusion_gate.other'"),
    ],
)
def test_half_a_gate_is_refused(name: str, tensor: torch.Tensor | None, message: str) -> None:
    tensors = load(head_bytes(gated_head()))
    tensors.pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
    with pytest.raises(InvalidRequest, match=message):
        head_from_bytes(save(tensors), 32)

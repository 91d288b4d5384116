"""Excitation: shares of a version's heads that follow the query, at every door, against closed forms."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support.attention.three_doors import DOORS, Doors
from support.cluster_checks import require_same, sharded
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.engine import (
    Collection,
    GradientQuery,
    SearchEngine,
    SearchLayer,
    attention_parts,
    head_bytes,
    head_from_bytes,
    vjp,
)
from dsearch.engine.search.embed import embed
from dsearch.errors import InvalidRequest
from dsearch.search_options import SearchOptions
from dsearch.types import Document

TEXTS = [
    f"{a} {b}" for a in ("apple", "bread", "cheese", "dough", "egg") for b in ("red", "old", "new", "dry")
]
QUERIES = ["cheese bread", "old egg", "new dough"]
HEADS, WIDTH, T = 3, 4, 0.2


def head(excited: bool = True, hop_strength: float = 0.0) -> Head:
    """Three heads away from the identity, whose shares follow the query."""
    one, generator = Head(32, heads=HEADS, rank=4, seed=2), torch.Generator().manual_seed(7)
    with torch.no_grad():
        one.query_in += 0.5 * torch.randn(one.query_in.shape, generator=generator)
        one.key_delta += 0.1 * torch.randn(one.key_delta.shape, generator=generator)
        one.mixture_logits += torch.randn(HEADS, generator=generator)
        one.hop_strength.fill_(hop_strength)
        if excited:
            one.open_excitation(WIDTH).excite += torch.randn(HEADS, WIDTH, generator=generator)
    return one.eval()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    with SearchEngine(tmp_path_factory.mktemp("excited") / "home", encoder=HashingEncoder) as engine:
        collection = engine.create("shop")
        collection.ingest(Document(f"p{n:02d}", text, metadata={"n": n}) for n, text in enumerate(TEXTS))
        collection.promote(collection.add_model(head(), {}))
        collection.add_model(head(hop_strength=0.5), {})
        yield collection


def softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def gelu(x: np.ndarray) -> np.ndarray:
    return torch.nn.functional.gelu(torch.as_tensor(x)).numpy()


def closed_form() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares m_h(q), attention a_h(q, d), and weights Σ_h m_h(q) a_h(q, d), in NumPy."""
    state = {name: tensor.double().numpy() for name, tensor in head().state_dict().items()}
    keys = HashingEncoder().encode_documents(TEXTS).astype(np.float64)
    queries = HashingEncoder().encode_queries(QUERIES).astype(np.float64)
    moved = queries[:, None] + np.einsum("hir,hrj,bj->bhi", state["query_out"], state["query_in"], queries)
    moved *= np.linalg.norm(queries, axis=-1)[:, None, None] / np.linalg.norm(moved, axis=-1, keepdims=True)
    folded = moved + moved @ state["key_delta"]  # W_Kᵀ q
    squeezed = folded.mean(1)
    squeezed /= np.linalg.norm(squeezed, axis=-1, keepdims=True)
    hidden = gelu(squeezed @ state["excitation.squeeze"].T)
    shares = softmax(state["mixture_logits"] + hidden @ state["excitation.excite"].T)
    attention = softmax(folded @ keys.T / T)
    return shares, attention, (shares[..., None] * attention).sum(1)


@pytest.mark.parametrize("over", ["candidates", "all"])
@pytest.mark.parametrize("door", DOORS)
def test_shares_of_heads_follow_the_query(doors: Doors, door: str, over: str) -> None:
    shares, _, weights = closed_form()
    assert np.ptp(shares, axis=0).max() > 0.2  # the queries differ
    keys = HashingEncoder().encode_documents(TEXTS).astype(np.float64)
    answer = doors.attend(door, QUERIES, over=over, temperature=T, mode="dense")
    for query, result in enumerate(answer["results"]):
        assert result["weights"] == pytest.approx(np.sort(weights[query])[::-1], abs=1e-5)
        assert result["context"] == pytest.approx(weights[query] @ keys, abs=1e-5)
        assert result["covered_mass"] == pytest.approx(1)
        assert result["mixtures"] == pytest.approx(shares[query], abs=1e-5)
    predicted = doors.predict(door, QUERIES, field="n", over=over, temperature=T, mode="dense")
    for query, result in enumerate(predicted["results"]):
        assert result["mean"] == pytest.approx(weights[query] @ np.arange(len(TEXTS)), abs=1e-3)


def test_parts_of_a_score_add_up_and_name_the_share_of_each_head(shop: Collection) -> None:
    shares, _, _ = closed_form()
    t = float(shop.head("v1").temperature.detach())
    answers = shop.answer(QUERIES, SearchOptions(mode="dense", explain=True, limit=len(TEXTS)))
    for answer in answers:
        assert sum(hit.weight for hit in answer.hits) == pytest.approx(1, abs=1e-5)
        for hit in answer.hits:
            parts = hit.explain
            assert parts is not None
            assert parts.shares is not None
            raw = np.array(parts.dense) + np.array(parts.keyword)
            assert np.dot(parts.shares, raw) + parts.mixing == pytest.approx(hit.score, abs=1e-4)
    parts = attention_parts(
        shop,
        GradientQuery(texts=QUERIES, options={"mode": "dense", "temperature": T}),
        include={"parts", "slopes"},
    )
    assert parts.slopes is None  # the shares move with the query: clients need vjp
    assert parts.mixtures is not None
    assert parts.head_weights is not None
    assert parts.mixtures == pytest.approx(shares, abs=1e-5)
    mixed = (parts.mixtures[..., None] * parts.head_weights).sum(1)
    assert mixed == pytest.approx(parts.weights, abs=1e-6)
    assert t == pytest.approx(0.05)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_shards_answer_as_one_machine(shop: Collection, tmp_path: Path, version: str) -> None:
    options = SearchOptions(explain=True, limit=12, model=version)
    here = shop.answer(QUERIES, options)
    with sharded(shop, tmp_path / "three", 3) as shards:
        for ours, theirs in zip(shards.search(QUERIES, version, options), here, strict=True):
            require_same(ours, theirs)


def test_the_gradient_reaches_the_excitation(shop: Collection) -> None:
    """∂ Σ weights · g / ∂ W₂ by differences."""
    layer = SearchLayer(shop.snapshot, copy.deepcopy(shop.head("v1")).double(), mode="dense", temperature=T)
    states = torch.as_tensor(HashingEncoder().encode_queries(QUERIES)).double()
    asked = GradientQuery(states=states, options={"mode": "dense", "temperature": T}, dtype="float64")
    parts = attention_parts(shop, asked)
    upstream = np.random.default_rng(0).normal(size=parts.weights.shape)
    pinned = GradientQuery(states=states, options=asked.options, dtype="float64", stamp=parts.stamp)
    gradients = vjp(shop, pinned, weights=upstream.tolist())
    of_excite = gradients.head["excitation.excite"]
    assert np.abs(of_excite).max() > 1e-4
    excitation = layer.head.excitation
    assert excitation is not None

    def value(step: float) -> float:
        with torch.no_grad():
            excitation.excite[1, 2] += step
            output = layer(states)
            excitation.excite[1, 2] -= step
        order = [dict(zip(line, row, strict=True)) for line, row in zip(parts.ids, upstream, strict=True)]
        ids = shop.ids_at(layer.snapshot, output.positions)
        return sum(
            float(weight) * order[query][id]
            for query, line in enumerate(ids)
            for id, weight in zip(line, output.weights[query], strict=True)
        )

    slope = (value(1e-5) - value(-1e-5)) / 2e-5
    assert of_excite[1, 2] == pytest.approx(slope, abs=1e-6)


def test_it_starts_as_the_constant_shares_and_is_part_of_a_head() -> None:
    plain, excited = head(excited=False), head(excited=False)
    excited.open_excitation()
    folded = torch.randn(5, HEADS, 32)
    assert torch.equal(excited.mixture_of(folded), plain.mixture.expand(5, -1))
    assert excited.distance_from_identity() == plain.distance_from_identity()
    read, _ = head_from_bytes(head_bytes(head()), 32)
    assert read.excitation is not None
    assert torch.equal(read.mixture_of(folded), head().mixture_of(folded))
    with pytest.raises(InvalidRequest, match="an excitation of 1 head"):
        Head(32).open_excitation()
    with pytest.raises(InvalidRequest, match="width=0"):
        Head(32, heads=2).open_excitation(0)


def test_a_version_says_that_older_releases_cannot_read_it(shop: Collection) -> None:
    assert shop.store.model("v1").record["format"] == 13
    assert shop.head("v1").excitation is not None


def test_learned_embeddings_are_mixed_by_the_query(shop: Collection) -> None:
    vectors = embed(shop, QUERIES, "query", model="v1").vectors
    one = head()
    with torch.no_grad():
        folded = one.fold(one.queries(torch.as_tensor(HashingEncoder().encode_queries(QUERIES))))
        mixed = (one.mixture_of(folded)[..., None] * folded).sum(1)
    expected = torch.nn.functional.normalize(mixed, dim=1).numpy()
    assert vectors == pytest.approx(expected, abs=1e-5)

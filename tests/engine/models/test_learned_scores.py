"""A learned score is part of a version: saved, served, explained and judged; unknown ones are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.attention import AdditiveScore, GeneralScore, KernelScore
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.learned_score import LEARNED_SCORES, new_score, score_of_tensors
from dsearch.engine import Collection, SearchEngine, SearchLayer, head_bytes, head_from_bytes
from dsearch.errors import InvalidRequest, UnsupportedFormat
from dsearch.jobs import JudgedQueries
from dsearch.training.saving import save_model
from dsearch.types import Document

COUNT, DIMENSION = 40, 8


@pytest.fixture
def plane(engine: SearchEngine) -> Collection:
    states = np.random.default_rng(1).standard_normal((COUNT, DIMENSION))
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    made = engine.create("plane", dimension=DIMENSION)
    made.upsert([Document(f"d{n}", f"row {n}") for n in range(COUNT)], states.astype(np.float32))
    return made


def scoring(name: str) -> Head:
    """A head whose learned score and projections are away from their start."""
    head, generator = Head(DIMENSION), torch.Generator().manual_seed(3)
    head.score = new_score(name, DIMENSION, 5)
    with torch.no_grad():
        for parameter in [head.query_delta, *head.score.parameters()]:
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return head.eval()


@pytest.mark.parametrize("name", LEARNED_SCORES)
def test_it_is_saved_and_served(plane: Collection, tmp_path: Path, name: str) -> None:
    head = scoring(name)
    plane.promote(plane.add_model(head, {"scope": "layer"}))
    assert plane.store.model("v1").record["format"] == 12
    states = torch.as_tensor(plane.snapshot.embeddings(np.arange(3)))
    keys = torch.as_tensor(plane.snapshot.embeddings(np.arange(COUNT)))
    with torch.no_grad():
        raw = head.learned_score(head.queries(states), head.keys(keys))[:, 0]  # type: ignore[misc]
        kernel = name in ("gaussian", "epanechnikov")
        expected = (raw / (1.0 if kernel else head.temperature)).softmax(-1)
    with SearchEngine(tmp_path / "home", readonly=True, encoder=HashingEncoder) as other:
        for collection in (plane, other.collection("plane")):
            for over in ("all", "candidates"):
                found = collection.attend(states, over=over, candidates=COUNT).output
                weights = torch.zeros(3, COUNT)
                at = torch.as_tensor(found.positions)
                weights.scatter_add_(1, at.clamp_min(0), found.weights * (at >= 0))
                torch.testing.assert_close(weights, expected, atol=1e-5, rtol=1e-4)
    explained = plane.similar(["d0"], explain=True, limit=3).hits
    for hit in explained:
        assert hit.explain is not None
        assert sum(hit.explain.dense) == pytest.approx(hit.score, abs=1e-5)


def test_a_layers_own_score_is_kept_with_it_and_judged_by_a_function(plane: Collection) -> None:
    score = AdditiveScore(DIMENSION, DIMENSION, 6)
    layer = SearchLayer(plane.snapshot, Head(DIMENSION), mode="dense", score=score)
    scored: list[SearchLayer] = []

    def measure(one: SearchLayer) -> list[float]:
        scored.append(one)
        return [float(one.score is score)] * 40

    saved = save_model(plane, layer, evidence=measure, measure="score is additive")
    assert saved.live == "v1", saved.reason
    assert len(scored) == 2
    kept = plane.head("v1").learned_score
    assert isinstance(kept, AdditiveScore)
    torch.testing.assert_close(kept.vector, score.vector)
    judged = JudgedQueries({"q": "row"}, {"q": {"d1": 1.0}})
    with pytest.raises(InvalidRequest, match="judgements as evidence of a learned score"):
        save_model(plane, layer, evidence=judged)
    odd = SearchLayer(plane.snapshot, Head(DIMENSION), mode="dense", score=KernelScore("boxcar"))
    with pytest.raises(InvalidRequest, match="score of type KernelScore; a version can have"):
        save_model(plane, odd)


@pytest.mark.parametrize("name", LEARNED_SCORES)
def test_its_tensors_say_which_it_is(name: str) -> None:
    head = scoring(name)
    head.open_output(3)
    again, _ = head_from_bytes(head_bytes(head), DIMENSION)
    assert [*again.score] == [name]
    for key, tensor in head.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), key
    copy = Head(DIMENSION)
    copy.load_state_dict(head.state_dict())
    assert copy.output is not None
    assert isinstance(copy.learned_score, AdditiveScore | GeneralScore | KernelScore)
    copy.load_state_dict(Head(DIMENSION).state_dict())
    assert (copy.output, copy.learned_score) == (None, None)


def test_what_no_head_has_is_refused(plane: Collection) -> None:
    tensors = {**scoring("general").own_tensors()}
    tensors["score.cubic.weight"] = tensors.pop("score.general.weight")
    from dsearch.engine import head_from_tensors

    with pytest.raises(InvalidRequest, match="learned score 'cubic'; use one of additive, general, gaussian"):
        head_from_tensors(tensors, DIMENSION)
    tensors["score.general.weight"] = tensors["score.cubic.weight"]
    with pytest.raises(InvalidRequest, match="learned scores cubic, general; a head has one"):
        head_from_tensors(tensors, DIMENSION)
    wide = scoring("additive").own_tensors()
    wide["score.additive.vector"] = torch.zeros(9)
    with pytest.raises(InvalidRequest, match="of shape"):
        head_from_tensors(wide, DIMENSION)
    with pytest.raises(InvalidRequest, match="output_dim=0; use 1 to 4096"):
        Head(DIMENSION).open_output(0)
    version = plane.store.next_model_version()
    plane.store.add_model(version, "v0", {"format": 18, "files": {}})
    with pytest.raises(UnsupportedFormat, match="has format 18; this release reads 1 to 17"):
        plane.promote(version)


def test_scores_are_told_from_their_tensors_and_bounded() -> None:
    assert score_of_tensors([], 4) is None
    vector = score_of_tensors([("additive.vector", torch.zeros(5))], 4)
    assert vector is not None
    assert len(vector["additive"].vector) == 5
    for odd in (torch.zeros(()), torch.zeros(2, 3)):  # the shape is compared later, in words
        scored = score_of_tensors([("additive.vector", odd)], 4)
        assert scored is not None
        assert len(scored["additive"].vector) == 1
    with pytest.raises(InvalidRequest, match="learned scores additive, general; a head has one"):
        score_of_tensors([("general.matrix", torch.zeros(4, 4)), ("additive.vector", torch.zeros(1))], 4)
    assert len(new_score("additive", 4, 4096)["additive"].vector) == 4096
    for hidden_dim in (0, 4097):
        with pytest.raises(InvalidRequest, match=rf"hidden_dim={hidden_dim}; use 1 to 4096"):
            new_score("additive", 4, hidden_dim)
    assert len(new_score("additive", 4)["additive"].vector) == 64
    with pytest.raises(
        InvalidRequest, match="learned score 'cosine'; use one of additive, general, gaussian, epa"
    ):
        new_score("cosine", 4)

"""A copy learns, its change alone is kept, and put back it gives what was learned."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder
from support.tiny_encoder import write_tiny_encoder

from dsearch.encoder import (
    Encoder,
    EncoderChange,
    EncoderTraining,
    LearningEncoder,
    TextEncoder,
    tuned,
    tuned_identity,
)
from dsearch.errors import CorruptData, InvalidRequest, MissingExtra

TEXTS = ["question 1 red", "answer 7", "apple bread honey honey"]
ALL = EncoderTraining("all")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return Encoder.load(str(write_tiny_encoder(tmp_path_factory.mktemp("tiny"))))


def learned(encoder: TextEncoder, training: EncoderTraining) -> LearningEncoder:
    copied = LearningEncoder(encoder, training)
    optimizer = torch.optim.Adam(copied.learning(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        (copied.embed(TEXTS, "query") @ copied.embed(TEXTS, "query").T).sum().backward()
        optimizer.step()
    return copied


@pytest.mark.parametrize("training", [EncoderTraining(rank=4, alpha=10), ALL], ids=["lora", "all"])
def test_a_change_put_back_gives_what_was_learned(tiny: Encoder, training: EncoderTraining) -> None:
    before = tiny.encode_queries(TEXTS)
    start = LearningEncoder(tiny, training)
    np.testing.assert_array_equal(start.encode_queries(TEXTS), before)
    copied = learned(tiny, training)
    np.testing.assert_array_equal(tiny.encode_queries(TEXTS), before)
    after = copied.encode_queries(TEXTS)
    assert np.abs(after - before).max() > 0.05
    served = tuned(tiny, copied.change(), tuned_identity(tiny.identity, "ab" * 32))
    assert isinstance(served, TextEncoder)
    np.testing.assert_allclose(served.encode_queries(TEXTS), after, atol=2e-6)
    np.testing.assert_allclose(served.encode_documents(TEXTS), copied.encode_documents(TEXTS), atol=2e-6)
    assert not any(parameter.requires_grad for parameter in served.parameters())


@pytest.mark.parametrize("training", [EncoderTraining(), ALL], ids=["lora", "all"])
def test_dropout_stays_off_in_a_network_that_trains(tiny: Encoder, training: EncoderTraining) -> None:
    """A training loop, and a trainer, set the whole network to train; what learns is what is served."""
    copied = LearningEncoder(tiny, training)
    assert any(isinstance(part, torch.nn.Dropout) and part.p > 0 for part in copied.modules())
    network = torch.nn.Sequential(copied)
    assert network.train() is network
    assert copied.training
    with torch.no_grad():
        first, second = (copied.embed(TEXTS, "query").numpy() for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, tiny.encode_queries(TEXTS), atol=1e-6)
    assert network.eval() is network
    assert not copied.training


def test_lora_keeps_only_its_factors(tiny: Encoder) -> None:
    copied = learned(tiny, EncoderTraining(rank=4))
    change = copied.change().tensors
    assert len(change) == 2 * 12  # six linear layers in each of two blocks
    assert not any("pooler" in name for name in change)
    assert sum(p.numel() for p in copied.learning()) == sum(t.numel() for t in change.values())
    same, other = (LearningEncoder(tiny, EncoderTraining(), seed=s).change().tensors for s in (0, 1))
    again = LearningEncoder(tiny, EncoderTraining()).change().tensors
    assert all(torch.equal(same[name], again[name]) for name in same)
    assert any(not torch.equal(same[name], other[name]) for name in same)


@pytest.mark.parametrize("training", [EncoderTraining(rank=4), ALL], ids=["lora", "all"])
def test_a_change_stays_as_it_is_while_learning_goes_on(tiny: Encoder, training: EncoderTraining) -> None:
    """The best one so far is kept."""
    copied = LearningEncoder(tiny, training)
    change = copied.change().tensors
    before = {name: tensor.clone() for name, tensor in change.items()}
    with torch.no_grad():
        for parameter in copied.learning():
            parameter.add_(1.0)
    assert all(torch.equal(change[name], before[name]) for name in before)
    assert not any(torch.equal(tensor, before[name]) for name, tensor in copied.change().tensors.items())


def test_drawing_the_factors_leaves_the_generator_of_others_alone(tiny: Encoder) -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    LearningEncoder(tiny, EncoderTraining())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_identity_follows_the_change(tiny: Encoder) -> None:
    one, other = (tuned_identity(tiny.identity, digest * 32) for digest in ("ab", "cd"))
    assert one.weights_sha256 != other.weights_sha256 != tiny.identity.weights_sha256
    assert one.name.endswith("+abababababab")
    assert one.dimension == tiny.identity.dimension


def test_what_cannot_be_trained_is_refused(tiny: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    class Remote:
        identity = HashingEncoder(16, "remote").identity

        def encode_queries(self, texts: list[str]) -> np.ndarray: ...
        def encode_documents(self, texts: list[str]) -> np.ndarray: ...
        def embed(self, texts: list[str], role: str) -> torch.Tensor: ...

    with pytest.raises(InvalidRequest, match="'remote' runs by 'test' and has no weights to train"):
        LearningEncoder(Remote(), ALL)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="takes no trained weights"):
        tuned(Remote(), EncoderChange(ALL, {}), Remote.identity)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="no linear layer for lora"):
        LearningEncoder(HashingEncoder(), EncoderTraining())
    with pytest.raises(CorruptData, match="do not fit encoder"):
        tuned(tiny, EncoderChange(ALL, {"gone": torch.zeros(2)}), tiny.identity)
    with pytest.raises(InvalidRequest, match="method='some'; use one of lora, all"):
        EncoderTraining("some")
    with pytest.raises(InvalidRequest, match="rank=0"):
        EncoderTraining(rank=0)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtra, match=r"pip install 'dsearch\[lora\]'"):
        LearningEncoder(tiny, EncoderTraining())


def test_a_tiny_encoder_is_a_whole_one(tiny: Encoder, tmp_path: Path) -> None:
    assert tiny.identity.dimension == 16
    again = Encoder.load(str(write_tiny_encoder(tmp_path)))
    assert again.identity.weights_sha256 == tiny.identity.weights_sha256


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_published_in_half_precision_is_loaded_in_single(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = str(write_tiny_encoder(tmp_path))
    Encoder.load(folder).model.to(dtype).save(str(tmp_path / "half"))
    loaded = Encoder.load(str(tmp_path / "half"))
    assert loaded.identity.dtype == "float32"
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    texts = ["question red", "answer blue 3"]
    expected = torch.as_tensor(Encoder.load(folder).encode_queries(texts))
    assert torch.cosine_similarity(torch.as_tensor(loaded.encode_queries(texts)), expected).min() > 0.999
    learning = LearningEncoder(loaded, EncoderTraining("all"))
    assert {parameter.dtype for parameter in learning.learning()} == {torch.float32}

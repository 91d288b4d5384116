from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from starlette.testclient import TestClient

from dsearch.encoder import EncoderIdentity
from dsearch.engine import SearchEngine
from dsearch.service import create_app
from dsearch.types import Document

DIMENSION = 32
ORIGIN = "http://127.0.0.1"


class WordEncoder:
    """Texts to unit vectors: the sum of a fixed random vector for each word. Deterministic, quick, real."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.identity = EncoderIdentity(
            name="words",
            revision="1",
            weights_sha256=hashlib.sha256(b"words").hexdigest(),
            pooling="sum",
            max_tokens=256,
            backend="torch",
            dtype="float32",
            dimension=DIMENSION,
        )

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        self.batches.append(len(texts))
        return self._encode(texts)

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        return self._encode(texts)

    def embed(self, texts: Sequence[str], role: str) -> torch.Tensor:
        return torch.as_tensor(self._encode(texts))

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        rows = np.array([self._vector(text) for text in texts], np.float32).reshape(-1, DIMENSION)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def _vector(self, text: str) -> np.ndarray:
        words = text.lower().split() or [""]
        seeds = [int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big") for word in words]
        return np.sum([np.random.default_rng(seed).normal(size=DIMENSION) for seed in seeds], axis=0)


WORDS = (
    *("attention", "query", "key", "value", "softmax", "head", "pool", "search"),
    *("index", "cat", "dog", "river", "stone", "lamp", "music", "index"),
)


def documents(count: int, *, seed: int = 0) -> list[Document]:
    """Made of a few words, so that every query finds several."""
    draw = np.random.default_rng(seed)
    return [
        Document(
            f"d{i:03d}",
            " ".join(draw.choice(WORDS, size=8)),
            title=f"Title {i} {draw.choice(WORDS)}",
            metadata={"i": i},
        )
        for i in range(count)
    ]


@pytest.fixture
def encoder() -> WordEncoder:
    return WordEncoder()


@pytest.fixture
def engine(tmp_path: Path, encoder: WordEncoder) -> Iterator[SearchEngine]:
    with SearchEngine(tmp_path / "home", encoder=lambda: encoder) as opened:
        yield opened


@pytest.fixture
def app(engine: SearchEngine) -> FastAPI:
    return create_app(engine)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url=ORIGIN) as connected:
        yield connected


@pytest.fixture
def papers(engine: SearchEngine) -> Any:
    """A collection of 150 documents: 140 in the generation, 10 written after, one of each deleted."""
    collection = engine.create("papers")
    collection.ingest(documents(140))
    collection.upsert(documents(150)[140:])
    collection.delete(["d003", "d145"])
    return collection

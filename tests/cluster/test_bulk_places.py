"""Names that workers of a cluster get mean the same in any folder."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dsearch.cluster.bulk import encode_on_cluster
from dsearch.engine import SearchEngine
from dsearch.types import Document


def test_workers_open_the_home_wherever_they_start(
    engine_at_home: SearchEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[Any] = []

    class Blocks:
        def map_batches(self, _: Any, *, fn_constructor_args: Any, **options: Any) -> Blocks:
            given.append(fn_constructor_args)
            return self

        def iter_rows(self) -> list[Any]:
            return []

    class DataContext:
        @staticmethod
        def get_current() -> DataContext:
            return DataContext()

    data: Any = ModuleType("ray.data")
    data.DataContext, data.from_items = DataContext, lambda *_, **__: Blocks()
    data.ActorPoolStrategy = lambda **_: None
    ray: Any = ModuleType("ray")
    ray.data = data
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.data", data)
    store = engine_at_home.create("papers").store
    store.upsert([Document("d", "a text")])
    assert encode_on_cluster(store, encoder={}) == 0
    ((home, name, _, _),) = given
    assert (Path(home), name) == (tmp_path / "home", "papers")


@pytest.fixture
def engine_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from support.tiny_encoder import write_tiny_encoder

    from dsearch.encoder import Encoder

    monkeypatch.chdir(tmp_path)
    encoder = Encoder.load(str(write_tiny_encoder(tmp_path / "encoder")))
    with SearchEngine("home", encoder=lambda: encoder) as engine:
        yield engine

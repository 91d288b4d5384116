"""Names that workers of a cluster get mean the same in any folder."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.fakes import HashingEncoder

from dsearch.cluster.bulk import EncodeBlocks, encode_on_cluster
from dsearch.engine import PassageOptions, SearchEngine
from dsearch.engine.indexing.ingest import encode_pending
from dsearch.errors import InvalidRequest
from dsearch.types import Document


def test_workers_open_the_home_wherever_they_start(
    engine_at_home: SearchEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[Any] = []
    asked: dict[str, Any] = {}

    class Blocks:
        def map_batches(self, _: Any, *, fn_constructor_args: Any, **options: Any) -> Blocks:
            given.append(fn_constructor_args)
            asked.update(options)
            return self

        def iter_rows(self) -> list[Any]:
            return []

    class DataContext:
        @staticmethod
        def get_current() -> DataContext:
            return DataContext()

    def from_items(items: list[Any], *, override_num_blocks: int) -> Blocks:
        asked["blocks"] = len(items), override_num_blocks
        return Blocks()

    data: Any = ModuleType("ray.data")
    data.DataContext, data.from_items = DataContext, from_items
    data.ActorPoolStrategy = lambda *, size: size
    ray: Any = ModuleType("ray")
    ray.data = data
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.data", data)
    store = engine_at_home.create("papers").store
    store.upsert([Document("d", "a text")])
    assert encode_on_cluster(store, encoder={}) == 0
    ((home, name, _, _),) = given
    assert (Path(home), name) == (tmp_path / "home", "papers")
    store.upsert([Document(f"d{number}", "a text") for number in range(4)])
    own: dict[str, Any] = {"encoder": {"encoder": "some/model", "dtype": "bfloat16"}, "threads": 5}
    assert encode_on_cluster(store, **own, workers=3, num_cpus=0.25, block=1) == 0
    assert given[-1][2:] == (own["encoder"], own["threads"])
    assert (asked["blocks"], asked["compute"], asked["num_cpus"]) == ((5, 5), 3, 0.25)
    encode_on_cluster(store, **own, workers=4, block=2)
    assert (asked["blocks"], asked["compute"]) == ((3, 3), 3)  # no worker without a block


@pytest.fixture
def engine_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from support.tiny_encoder import write_tiny_encoder

    from dsearch.encoder import Encoder

    monkeypatch.chdir(tmp_path)
    encoder = Encoder.load(str(write_tiny_encoder(tmp_path / "encoder")))
    with SearchEngine("home", encoder=lambda: encoder) as engine:
        yield engine


@pytest.mark.parametrize("name", ["workers", "threads", "block"])
@pytest.mark.parametrize("number", [0, -1])
def test_there_is_one_of_each_at_least(name: str, number: int) -> None:
    """Refused before a cluster is asked for anything."""
    store: Any = None
    own: Any = {name: number}
    with pytest.raises(InvalidRequest, match=f"^{name}={number}; use 1 or more$"):
        encode_on_cluster(store, encoder={"encoder": "some/model"}, **own)


def test_passages_of_a_block_go_back_to_their_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a Ray that encodes here: a row is told by its number in the store, not by its place in a block."""
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        alone, made = (
            engine.create(name, passages=PassageOptions(tokens=16, overlap=0)) for name in ("alone", "made")
        )
        texts = ["one two", "three", " ".join(f"word{n}" for n in range(40)), "four five six"]
        for collection in (alone, made):
            collection.store.upsert([Document(f"d{n}", text) for n, text in enumerate(texts)])
        encode_pending(alone.store, alone.encoder)
        worker = EncodeBlocks.__new__(EncodeBlocks)  # without the process that it is of
        worker._collection, worker._encoder = made, made.encoder

        class Blocks:
            def __init__(self, items: list[Any]):
                self._items = items

            def map_batches(self, *_: Any, **__: Any) -> Blocks:
                return self

            def iter_rows(self) -> Any:
                for item in self._items:
                    yield {"encoded": worker({"rows": [item["rows"]]})["encoded"][0]}

        data: Any = ModuleType("ray.data")
        data.DataContext = SimpleNamespace(get_current=SimpleNamespace)
        data.from_items = lambda items, override_num_blocks: Blocks(items)
        data.ActorPoolStrategy = lambda *, size: size
        ray: Any = ModuleType("ray")
        ray.data = data
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setitem(sys.modules, "ray.data", data)
        assert encode_on_cluster(made.store, encoder={}, block=2) == 4
        rows = alone.store.rows()
        ours, theirs = made.store.passages(rows), alone.store.passages(rows)
        assert list(ours) == list(theirs) == [rows[2]]
        assert ours[rows[2]].spans.tolist() == theirs[rows[2]].spans.tolist()
        np.testing.assert_allclose(made.store.embeddings(rows), alone.store.embeddings(rows), atol=1e-6)
